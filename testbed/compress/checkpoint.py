"""A compressor's state on its way into buckets that may not be made yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from testbed.compress.bucket import Bucket
from testbed.compress.parts import owned
from testbed.errors import InputError


class Checkpoint:
    """What was loaded and no bucket has taken yet. ``kind``: name of the memory."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._memory: dict[str, Tensor] = {}
        self._learnt: list[Mapping[str, Any]] = []
        self._served: set[str] = set()
        """Parameters whose bucket has what there was for it."""

    @classmethod
    def read(cls, state: Mapping[str, Any], kind: str) -> Checkpoint:
        """What ``to_json`` gave. Raises InputError when another memory's vectors are in it."""
        if state["memory"] and state["kind"] != kind:
            raise InputError(
                f"memory {kind!r} cannot take over what memory {state['kind']!r} holds of "
                f"{', '.join(sorted(state['memory']))}",
                hint=f"Load it into a compressor with memory {state['kind']!r}",
            )
        loaded = cls(kind)
        loaded._memory, loaded._learnt = dict(state["memory"]), list(state["learnt"])
        return loaded

    def to_json(self, buckets: Iterable[Bucket]) -> dict[str, Any]:
        """The state of ``buckets``, and what waits for others."""
        memory, learnt = dict(self._memory), list(self._learnt)
        for bucket in buckets:
            memory.update(bucket.memory())
            learnt.append(bucket.learnt())
        return {"kind": self._kind, "memory": memory, "learnt": learnt}

    def hand_over(self, bucket: Bucket) -> None:
        """Give ``bucket`` what belongs to it."""
        names = [part.name for part in bucket.layout]
        own = {key: self._memory.pop(key) for key in owned(self._memory, names)}
        if own:
            bucket.recall(own)
        self._served |= {*names}
        for learnt in self._learnt:
            if {*learnt["parts"]} & {*names}:
                bucket.learn(learnt)
        self._learnt = [one for one in self._learnt if not {*one["parts"]} <= self._served]
