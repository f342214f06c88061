"""How much is sent: rules that map what a worker observed to the next density. Every controller
that ships is one line here.
"""

from __future__ import annotations

from testbed.control.accordion import Accordion
from testbed.control.adalag import AdaLag, Lags
from testbed.control.adatopk import AdaTopK, EquationTwo
from testbed.control.aimd import AimdBdp, AimdDelay
from testbed.control.algc import Algc
from testbed.control.base import controllers
from testbed.control.delay_aware import Gradient, Lenient, Proportional, Strict, TwoLevel
from testbed.control.lgreco import Lgreco
from testbed.control.schedules import DensitySchedule, DgcWarmup, Fixed, RandomWalk, Script

for _kind in (
    Fixed, AdaTopK, AdaLag, TwoLevel, Gradient, Proportional, Lenient, Strict, AimdDelay, AimdBdp,
    Accordion, Algc, Lags, Lgreco, DensitySchedule, DgcWarmup, RandomWalk, Script, EquationTwo,
):  # fmt: skip
    controllers.add(_kind.name, _kind)
