"""How much is sent: rules that map what a worker observed to the next density. Every controller
that ships is one line here.
"""

from __future__ import annotations

from testbed.control.accordion import Accordion
from testbed.control.adalag import AdaLag, Lags
from testbed.control.adatopk import AdaTopK
from testbed.control.aimd import AimdBdp, AimdDelay
from testbed.control.algc import Algc
from testbed.control.base import controllers
from testbed.control.delay_aware import Gradient, Lenient, Proportional, Strict, TwoLevel
from testbed.control.lgreco import Lgreco
from testbed.control.schedules import DensitySchedule, DgcWarmup, Fixed, RandomWalk, Script

controllers.add("fixed", Fixed)
controllers.add("adatopk", AdaTopK)
controllers.add("adalag", AdaLag)
controllers.add("dc2-da1", TwoLevel)
controllers.add("dc2-da2", Gradient)
controllers.add("dc2-da3", Proportional)
controllers.add("dc2-da4", Lenient)
controllers.add("dc2-da5", Strict)
controllers.add("aimd-delay", AimdDelay)
controllers.add("aimd-bdp", AimdBdp)
controllers.add("accordion", Accordion)
controllers.add("algc", Algc)
controllers.add("lags", Lags)
controllers.add("lgreco", Lgreco)
controllers.add("schedule", DensitySchedule)
controllers.add("dgc-warmup", DgcWarmup)
controllers.add("random-walk", RandomWalk)
controllers.add("script", Script)
