"""The time that layers compute in: as they do, or as long as a profile says, one after the other."""

from __future__ import annotations

from testbed.node import Node

_LATE_S = 1e-3
"""Computation that ends so much later than it is held to has overrun: less is the scheduler's doing."""


class LayerClock:
    """``held``: whether there is a profile. Deadlines are absolute, so that lateness does not add up.

    ``at_s``: until when the accelerator is busy, if there is one; ``stall_s``: it waited for parameters for so long.
    """

    def __init__(self, node: Node, *, held: bool) -> None:
        self._node, self._held = node, held
        self.at_s = self.stall_s = 0.0
        self.overran = False

    def begin(self, at_s: float) -> None:
        """A step begins."""
        self.at_s, self.stall_s, self.overran = at_s, 0.0, False

    def there(self, time_s: float) -> None:
        """What the coming layer needs was there at ``time_s``."""
        if time_s > self.at_s:
            self.stall_s += time_s - self.at_s
            self.at_s = time_s

    def hold(self, seconds: float) -> None:
        """A layer computes."""
        if self._held:
            self.at_s += seconds
            self._node.sleep_until(self.at_s)

    def done(self, there_s: float) -> None:
        """What it computed is really there since ``there_s``: that whoever waits wakes later makes nothing late."""
        if not self._held or there_s > self.at_s + _LATE_S:
            self.overran = self.overran or self._held
            self.at_s = there_s
