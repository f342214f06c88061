"""The constants that no paper gives: what a host takes for a message. First guesses, not calibrated yet.

``testbed bench agreement --calibrate`` tries others on one half of its runs and judges by the other half
(docs/simulation.md).
"""

from __future__ import annotations

from testbed.fabric.sim.network import Costs

COSTS = Costs(send_s=600e-6, receive_s=1000e-6)
