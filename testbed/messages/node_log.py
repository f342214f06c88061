"""Operations of one node, as they are added one after the other."""

from __future__ import annotations

from testbed.messages.trace import Kind, Operation


class NodeLog:
    """Every method returns the place of what it added."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def compute(
        self, seconds: float, after: list[int], begin_s: float | None, step: int | None
    ) -> int:
        """A computation of so many seconds."""
        return self._add(Operation("compute", tuple(after), seconds, begin_s=begin_s, step=step))

    def message(
        self, kind: Kind, peer: str, size: int, tag: int, after: list[int], step: int | None, begin_s: float | None = None
    ) -> int:  # fmt: skip
        """One that is sent or received, of ``size`` bytes."""
        about = {"peer": peer, "bytes": size, "tag": tag, "begin_s": begin_s, "step": step}
        return self._add(Operation(kind, tuple(after), **about))  # type: ignore[arg-type]

    def _add(self, one: Operation) -> int:
        self.operations.append(one)
        return len(self.operations) - 1
