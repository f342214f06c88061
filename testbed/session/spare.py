"""The workers that a run can go on without."""

from __future__ import annotations

from collections.abc import Collection


class Spare:
    """``nodes``: who may be lost, ``many`` of them in all. ``lost``: who has been."""

    def __init__(self, nodes: Collection[str] = (), many: int = 0) -> None:
        self.nodes, self._many = frozenset(nodes), many
        self.lost: list[str] = []

    def lose(self, node: str) -> bool:
        """Whether the run goes on without ``node``, too."""
        if node in self.lost:
            return True
        if node not in self.nodes or len(self.lost) >= self._many:
            return False
        self.lost.append(node)
        return True
