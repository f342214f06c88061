"""Holding computation to a given time, so that nodes that share a processor behave like accelerators."""

from __future__ import annotations

from testbed.node import Node
from testbed.train.step_times import StepTimes


class Pace:
    """``times``: how long each step's computation takes; None: as long as it takes."""

    def __init__(self, node: Node, times: StepTimes | None) -> None:
        self._node, self._times = node, times

    def asked_s(self, step: int, share: float = 1.0) -> float | None:
        """Wall seconds that ``step`` is to compute for, or for ``share`` of a batch of it."""
        return None if self._times is None else self._times.at(step) * share

    def hold(self, step: int, start_s: float, share: float = 1.0) -> bool:
        """Wait until ``step``, which began at ``start_s``, has computed for its time, or for ``share`` of it.

        The deadline is absolute, so that lateness does not add up. True when it had passed already.
        """
        asked_s = self.asked_s(step, share)
        if asked_s is None:
            return False
        deadline = start_s + asked_s
        if self._node.now() > deadline:
            return True
        self._node.sleep_until(deadline)
        return False
