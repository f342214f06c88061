"""A hook's algorithm, costs of its steps as one rank sees them, and state that outlives new
buckets.

DistributedDataParallel makes new buckets of the same parameters after its first backward pass, and
a process that goes on from a checkpoint begins with other buckets than those that were saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from testbed.algorithms import Algorithm
from testbed.compatibility import check, resolve
from testbed.compress.base import Recipe
from testbed.compress.layout import Layout
from testbed.compress.memory import parameters_of
from testbed.control.base import controllers
from testbed.errors import InputError


def row_of(algorithm: str | Algorithm | Recipe, density: float | None) -> Algorithm:
    """The checked row. Raises InputError where ``density``, exchange or controller do not suit."""
    row = resolve(algorithm) if isinstance(algorithm, str) else algorithm
    if isinstance(row, Recipe):
        row = _of_recipe(row)
    if row.exchange != "ps":
        raise InputError(
            f"algorithm {row.name!r} travels by {row.exchange!r}",
            hint="With DistributedDataParallel all ranks send their gradients to all others",
        )
    if density is not None:
        if row.controller != "fixed":
            raise InputError(
                f"algorithm {row.name!r}: its controller {row.controller!r} chooses the density"
            )
        row = replace(row, options={**row.options, "density": density})
    check(row)
    if wanted := controllers.get(row.controller)(seed=0, **row.options).watches:
        raise InputError(
            f"algorithm {row.name!r}: its controller {row.controller!r} watches "
            f"{', '.join(sorted(wanted))}",
            hint="A hook does not tell of that; run it in the testbed",
        )
    return row


def _of_recipe(recipe: Recipe) -> Algorithm:
    return Algorithm(
        "recipe",
        selector=recipe.selector.name,
        selector_options=dict(recipe.selector.options),
        values=recipe.values.name,
        values_options=dict(recipe.values.options),
        memory=recipe.memory.name,
        memory_options=dict(recipe.memory.options),
        buckets="layer" if recipe.layers else "whole",
        dense_below=recipe.dense_below,
    )


@dataclass(frozen=True, slots=True)
class HookReport:
    """Counts of one step, or sums over several. Bytes are of this rank."""

    steps: int = 0
    elements: int = 0
    """Gradient elements, sent or not."""
    sent_count: int = 0
    """Elements that this rank sent."""
    payload_bytes: int = 0
    """Bytes that compression made of its gradients."""
    message_bytes: int = 0
    """The same as it was handed over to be sent, with headers, filled up to the common length."""
    bytes_sent: int = 0
    """Bytes that left it in all-gathers by ring: each message passes through all other ranks."""
    bytes_received: int = 0
    """Bytes that reached it: a message of every other rank."""
    dense_bytes: int = 0
    """Bytes that a ring all-reduce of the same gradients in float32 would send, and receive."""
    delay_s: float = 0.0
    """From the first message to the last mean, where the state was given a clock."""

    @property
    def density(self) -> float:
        """Share of the elements that this rank sent."""
        return self.sent_count / self.elements if self.elements else 0.0

    def __add__(self, other: HookReport) -> HookReport:
        names = [field.name for field in fields(self)]
        return HookReport(**{name: getattr(self, name) + getattr(other, name) for name in names})


VECTORS = ("memory", "reply")
"""Parts of a state that are tensors by ``<name>`` or ``<name>/<vector>`` of a parameter."""


class CarriedState:
    """States (``memory``, ``learnt`` and ``kind`` as a Compressor's, and ``reply``) that wait."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._vectors: dict[str, dict[str, Tensor]] = {part: {} for part in VECTORS}
        self._learnt: list[Mapping[str, Any]] = []

    def add(self, state: Mapping[str, Any]) -> None:
        """Take in a bucket's or a checkpoint's state."""
        for part in VECTORS:
            self._vectors[part].update(state[part])
        newer = [entry["parts"] for entry in state["learnt"]]
        self._learnt = [entry for entry in self._learnt if entry["parts"] not in newer]
        self._learnt.extend(state["learnt"])

    def take(self, layout: Layout) -> dict[str, Any]:
        """Hand over what belongs to the parameters of ``layout``. What other bucketings of them
        have learnt stays here as well: buckets like theirs may yet come."""
        order = [part.name for part in layout]
        names = {*order}
        taken: dict[str, Any] = {"kind": self._kind}
        for part, vectors in self._vectors.items():
            taken[part] = {key: vectors.pop(key) for key in parameters_of(vectors, names)}
        taken["learnt"] = [entry for entry in self._learnt if names & {*entry["parts"]}]
        self._learnt = [entry for entry in self._learnt if entry["parts"] != order]
        return taken

    def together(self, states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """One state of what waits and of ``states``."""
        whole = CarriedState(self._kind)
        for state in (self._state(), *states):
            whole.add(state)
        return whole._state()

    def _state(self) -> dict[str, Any]:
        return {"kind": self._kind, "learnt": [*self._learnt], **self._vectors}
