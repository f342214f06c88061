"""The redundancy of every step: the one that was asked for, or the one that the first steps let expect most of."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from testbed.exchange.coded.choose import Choice, choose_r
from testbed.exchange.coded.header import Note
from testbed.exchange.coded.options import AUTO, CodedOptions, candidates
from testbed.exchange.coded.plan import Scheme

TRIAL_STEPS = 3
"""With ``auto``, steps without redundancy. The packets of the last of them tell how long the one before took."""


class Redundancy:
    """``schemes``: all that may come to be used."""

    def __init__(self, options: CodedOptions, nodes: int) -> None:
        self.schemes = candidates(options, nodes)
        self.scheme: Scheme = self.schemes[0]
        """That of the step to come."""
        self._bottleneck = options.bottleneck
        self._open = options.r == AUTO

    def learn(self, step: int, notes: Sequence[Note]) -> Choice | None:
        """All nodes' notes of ``step``; returns what was decided because of them, everywhere alike.

        The slowest node counts, in computing and in communicating.
        """
        if not self._open or step < TRIAL_STEPS:
            return None
        self._open = False
        t_calc_s, t_comm_s = (max(times) for times in zip(*map(_times, notes), strict=True))
        if isnan(t_calc_s + t_comm_s):
            return None
        first = self.schemes[0]
        choice = choose_r(first.name, first.nodes, t_calc_s, t_comm_s, self._bottleneck)
        self.scheme = next(plan for plan in self.schemes if plan.r == choice.r)
        return choice


def _times(note: Note) -> tuple[float, float]:
    return note.t_calc_s, note.t_comm_s
