"""The constants that no paper gives: what a host takes for a message.

Found by ``testbed bench agreement --calibrate`` on one half of its runs, and judged by the other half
(docs/simulation.md). There all nodes share two processors, and what they wait for each other is in it.
"""

from __future__ import annotations

from testbed.fabric.sim.network import Costs
from testbed.scenario.model import Sim

COSTS = Costs(send_s=600e-6, receive_s=1000e-6)
FLOAT_BITS = 32


def costs_of(asked: Sim) -> Costs:
    """What a scenario says of its hosts, and these constants for what it does not say."""
    return Costs(
        COSTS.send_s if asked.send is None else float(asked.send),
        COSTS.receive_s if asked.receive is None else float(asked.receive),
        float(asked.compress),
        FLOAT_BITS / asked.compress_rate if asked.compress_rate else 0.0,
    )
