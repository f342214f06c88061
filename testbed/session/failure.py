"""Of several failures that come together, which one is the cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.errors import ExperimentError, InputError, MachineError, NarrowsError, NodeLost

_BY_EXIT_CODE: dict[int, type[NarrowsError]] = {
    InputError.exit_code: InputError,
    MachineError.exit_code: MachineError,
}
"""What a node found wrong with the input or with its machine is no failed experiment."""


class Failures:
    """Failures in the order they came. A dead process outranks what nodes report of their own work, and
    that outranks what they report of each other."""

    def __init__(self, first: NarrowsError, reporter: str | None = None) -> None:
        self._ranked: list[tuple[int, NarrowsError]] = []
        self._reporters: set[str | None] = set()
        self.add(first, reporter=reporter)

    def add(
        self, error: NarrowsError, *, certain: bool = False, reporter: str | None = None
    ) -> None:
        """Take in one more; ``certain``: the fabric saw the process end; ``reporter``: the node that says it."""
        hearsay = isinstance(error, NodeLost) and error.hearsay
        self._ranked.append((0 if certain else 2 if hearsay else 1, error))
        self._reporters.add(reporter)

    def cause(self) -> NarrowsError:
        """The first of the highest rank; a node that tells of another's loss was not lost before it.

        Of a lost node, others may know in what phase they missed it.
        """
        first = [item for item in self._ranked if not self._told(item[1])] or self._ranked
        found = min(first, key=lambda item: item[0])[1]
        if not isinstance(found, NodeLost) or found.phase is not None:
            return found
        lost = [error for _, error in self._ranked if isinstance(error, NodeLost)]
        told = next((e for e in lost if e.node == found.node and e.phase is not None), None)
        return found if told is None else found.during(told.step or 0, str(told.phase))

    def _told(self, error: NarrowsError) -> bool:
        """Return True when the node that is said to be lost has reported something itself."""
        return isinstance(error, NodeLost) and error.hearsay and error.node in self._reporters

    @staticmethod
    def reported(node: str, message: dict[str, Any]) -> NarrowsError:
        """The error that a node sent over the control network."""
        text = str(message["message"])
        if message.get("error") != "NodeLost":
            kind = _BY_EXIT_CODE.get(message.get("exit_code", 1), ExperimentError)
            return kind(f"node {node!r}: {text}")
        return NodeLost(
            str(message["node"]),
            message.get("step"),
            f"{node} says: {text}",
            phase=message.get("phase"),
            hearsay=True,
        )


def located(lost: NodeLost, steps: Mapping[str, int]) -> NodeLost:
    """The same loss with the step that the node was at; ``steps``: the last that each has finished."""
    if lost.step is not None:
        return lost
    step = steps.get(lost.node, 0) + 1
    return NodeLost(lost.node, step, lost.reason, phase=lost.phase, hearsay=lost.hearsay)
