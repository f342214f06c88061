"""What packets that are lost cost a flow: time, and being sent again. Random loss, and outages that drop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from testbed.fabric.sim.board import PACKET_BITS, Board
from testbed.fabric.sim.shares import Floats, Indices
from testbed.fabric.sim.windows import TIMEOUT_S
from testbed.scenario.impairments import FourState, GilbertElliott, Impairments

if TYPE_CHECKING:
    from testbed.fabric.sim.flow import Flow

_TAIL = 3
"""Packets at the end of a message whose loss no later ones give away: a probe has to find it out."""
_PROBED, _REPAIRED = 3, 1
"""Round trips until the one and the other has been repaired (RFC 8985: two until the probe)."""


class Losses:
    """Draws what is lost. ``seed``: of the run; directions with a seed of their own use that."""

    def __init__(self, board: Board, seed: int) -> None:
        self._board, self._seed = board, seed
        self._random: dict[int, np.random.Generator] = {}
        self._stalled: dict[int, float] = {}
        """Directions that drop everything, and since when."""
        self._held: dict[Flow, float] = {}
        """Flows that will try again at that time, and not before."""

    def in_round(self, rows: Indices, flows: Sequence[Flow], packets: Floats) -> NDArray[np.int64]:
        """How many of ``packets`` (rows,), sent in a round trip of each, are lost."""
        lost = np.zeros(len(rows), np.int64)
        if self._board.impaired:
            for i, row in enumerate(rows):
                lost[i] = self._drawn(flows[row], round(float(packets[i])))
        return lost

    def at_end(self, flow: Flow, window: float) -> int:
        """Round trips that ``flow`` still takes after all has been sent, since some of the last was lost."""
        if not self._board.impaired or flow.memory is None:
            return 0
        last = int(min(window, np.ceil(flow.bits / PACKET_BITS)))
        if self._drawn(flow, min(_TAIL, last)):
            return _PROBED
        return _REPAIRED if self._drawn(flow, last - _TAIL) else 0

    def on_link(self, number: int, packets: int) -> int:
        """How many of ``packets`` a direction loses; it counts them."""
        asked = self._board.impaired.get(number)
        if asked is None or packets <= 0 or not (share := mean_loss(asked)):
            return 0
        lost = self._lost(number, asked, share, packets)
        self._board.drops[number] += lost
        return lost

    def last_of(self, number: int, lost: int) -> float:
        """Where among the packets of a message, from 0 to 1, the last of ``lost`` ones was that are anywhere in it."""
        return float(self._random[number].random() ** (1 / lost))

    def stall(self, number: int, now_s: float) -> None:
        """From now on a direction drops everything."""
        self._stalled[number] = now_s

    def resume(self, flows: Iterable[Flow], now_s: float) -> None:
        """A direction serves again. A sender finds out when it tries next: intervals between tries double."""
        for number in [n for n in self._stalled if not self._board.dropping[n]]:
            since_s = self._stalled.pop(number)
            for flow in flows:
                if flow.memory is None:
                    continue
                wait_s = TIMEOUT_S + flow.memory.round_trip_s
                try_s = max(since_s, flow.start_s) + wait_s
                while try_s < now_s:
                    wait_s *= 2
                    try_s += wait_s
                self._held[flow] = try_s

    def hold(self, limit: Floats, flows: Sequence[Flow], now_s: float) -> None:
        """Set the limits of those who wait for their next try to nothing."""
        self._held = {flow: try_s for flow, try_s in self._held.items() if try_s > now_s}
        if self._held:
            for row, flow in enumerate(flows):
                if flow in self._held:
                    limit[row] = 0.0

    @property
    def next_s(self) -> float:
        """When the next one tries."""
        return min(self._held.values(), default=np.inf)

    def _drawn(self, flow: Flow, packets: int) -> int:
        """Packets out of ``packets`` that are lost on the way; each direction counts its own."""
        return sum(self.on_link(number, packets) for number in flow.way.there)

    def _lost(self, number: int, asked: Impairments, share: float, packets: int) -> int:
        """Bursts count as one: as many losses as bursts, each so long."""
        random = self._random.get(number)
        if random is None:
            seed = self._seed if asked.seed is None else asked.seed
            random = self._random[number] = np.random.default_rng([seed, number])
        burst = mean_burst(asked)
        bursts = int(random.binomial(packets, min(1.0, share / burst)))
        if not bursts or burst == 1:
            return bursts
        return min(packets, int(random.geometric(1 / burst, bursts).sum()))


def mean_loss(asked: Impairments) -> float:
    """Share of packets that do not arrive, or arrive damaged, in the long run."""
    loss = asked.loss
    share = loss.mean_loss if isinstance(loss, (GilbertElliott, FourState)) else loss
    return 1 - (1 - share) * (1 - asked.corrupt)


def mean_burst(asked: Impairments) -> float:
    """Packets that are lost together."""
    return asked.loss.mean_burst if isinstance(asked.loss, GilbertElliott) else 1.0
