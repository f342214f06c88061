"""Holding computation to a given time, so that nodes that share a processor behave like accelerators."""

from __future__ import annotations

from testbed.node import Node


class Pace:
    """``pace_s``: wall seconds that a step's computation takes; None: as long as it takes."""

    def __init__(self, node: Node, pace_s: float | None) -> None:
        self._node, self._pace_s = node, pace_s

    def hold(self, start_s: float, share: float = 1.0) -> bool:
        """Wait until the step that began at ``start_s`` has computed for its time, or for ``share`` of it.

        The deadline is absolute, so that lateness does not add up. True when it had passed already.
        """
        if self._pace_s is None:
            return False
        deadline = start_s + self._pace_s * share
        if self._node.now() > deadline:
            return True
        self._node.sleep_until(deadline)
        return False
