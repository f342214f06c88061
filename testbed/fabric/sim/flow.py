"""What one connection has to send at a time, or one node to a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, nan

import numpy as np

from testbed.fabric.sim.board import HOPS, Board, Way
from testbed.fabric.sim.shares import Indices
from testbed.fabric.sim.windows import Memory

FAIR_SHARE = nan
"""``limit_bits`` of a flow that takes what is its fair share at any time, and neither starts slowly nor queues."""


@dataclass(eq=False, slots=True)
class Flow:
    """``bits`` on the wire along ``way``; ``done`` is called when the last has been sent.

    ``memory``: the connection's; None for a flow that has no window: it ignores congestion and sends at
    ``limit_bits``, or takes its ``FAIR_SHARE``.
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
    legs: Sequence[Flow] = ()
    """Of what is multicast: the way to each member. Its own way is all their links, each once."""


def ways(flows: Sequence[Flow], hops: int, free: int) -> tuple[Indices, Indices]:
    """The links of ``flows`` there (flows, hops), filled up with ``free``, and back (flows, HOPS)."""
    there, back = [flow.way.there for flow in flows], [flow.way.back for flow in flows]
    if hops > HOPS:
        there = [(*links, *[free] * (hops - len(links))) for links in there]
    return np.array(there), np.array(back)


def note_queues(board: Board, flows: Sequence[Flow], there: Indices) -> None:
    """``flows`` along ``there`` (flows, hops) begin now: each remembers what is before it on its way."""
    waited_s = board.wait_s(there)
    begun = board.served_bits[there] + waited_s[:, None] * board.finite[there]
    for flow, wait, bits in zip(flows, waited_s.tolist(), begun.tolist(), strict=True):
        flow.waited_s, flow.begun_bits = wait, bits
        if flow.legs:
            note_queues(board, flow.legs, ways(flow.legs, HOPS, board.free)[0])
