"""The constants that no paper gives: what a host takes for a message. Calibrated against real links.

``testbed bench agreement`` finds them on one half of its runs and judges by the other (docs/simulation.md).
"""

from __future__ import annotations

from testbed.fabric.sim.network import Costs

COSTS = Costs(send_s=50e-6, receive_s=150e-6)
