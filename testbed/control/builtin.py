"""Every controller that ships with Narrows, in one place. A new one is a file and a line here."""

from __future__ import annotations

from testbed.control.adalag import AdaLag
from testbed.control.adatopk import AdaTopK
from testbed.control.base import controllers
from testbed.control.delay_aware import Gradient, Lenient, Proportional, Strict, TwoLevel
from testbed.control.fixed import Fixed

controllers.add("fixed", Fixed)
controllers.add("adatopk", AdaTopK)
controllers.add("adalag", AdaLag)
controllers.add("dc2-da1", TwoLevel)
controllers.add("dc2-da2", Gradient)
controllers.add("dc2-da3", Proportional)
controllers.add("dc2-da4", Lenient)
controllers.add("dc2-da5", Strict)
