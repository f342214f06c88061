"""What buckets know, on its way to others.

DistributedDataParallel makes new buckets of the same parameters after its first backward pass, and a
process that goes on from a checkpoint begins with other buckets than those that were saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from testbed.compress.layout import Layout
from testbed.compress.parts import owned

VECTORS = ("memory", "reply")
"""Parts of a state that are tensors by ``<name>`` or ``<name>/<vector>`` of a parameter."""


class Carried:
    """States (``memory``, ``learnt`` and ``kind`` as a Compressor's, and ``reply``) that wait."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._vectors: dict[str, dict[str, Tensor]] = {part: {} for part in VECTORS}
        self._learnt: list[Mapping[str, Any]] = []

    def add(self, state: Mapping[str, Any]) -> None:
        """Take in a bucket's or a checkpoint's state."""
        for part in VECTORS:
            self._vectors[part].update(state[part])
        newer = [one["parts"] for one in state["learnt"]]
        self._learnt = [one for one in self._learnt if one["parts"] not in newer]
        self._learnt.extend(state["learnt"])

    def take(self, layout: Layout) -> dict[str, Any]:
        """Hand over what belongs to the parameters of ``layout``.

        What other bucketings of them have learnt stays here as well: buckets like theirs may yet come.
        """
        order = [part.name for part in layout]
        names = {*order}
        taken: dict[str, Any] = {"kind": self._kind}
        for part, held in self._vectors.items():
            taken[part] = {key: held.pop(key) for key in owned(held, names)}
        taken["learnt"] = [one for one in self._learnt if names & {*one["parts"]}]
        self._learnt = [one for one in self._learnt if one["parts"] != order]
        return taken

    def together(self, states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """One state of what waits and of ``states``."""
        whole = Carried(self._kind)
        for state in (self._state(), *states):
            whole.add(state)
        return whole._state()

    def _state(self) -> dict[str, Any]:
        return {"kind": self._kind, "learnt": [*self._learnt], **self._vectors}
