"""What one connection has to send at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from testbed.fabric.sim.board import Way
from testbed.fabric.sim.windows import Memory


@dataclass(eq=False, slots=True)
class Flow:
    """``bits`` on the wire along ``way``; ``done`` is called when the last has been sent.

    ``memory``: the connection's; None for a flow that ignores congestion and sends at ``limit_bits``.
    """

    way: Way
    bits: float
    done: Callable[[Flow], None]
    memory: Memory | None = field(default_factory=Memory)
    limit_bits: float = inf
    start_s: float = 0.0
    waited_s: float = 0.0
    """How long the queues on the way were when it began."""
    begun_bits: Sequence[float] = ()
    """What each link of the way will have served (``Board.served_bits``) when it comes to this flow's first bit."""
    tightest: int = -1
    """The link that held it up last."""
    late_s: float = 0.0
    """What retransmissions at its very end cost."""
