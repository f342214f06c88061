"""Vectors of a bucket by the names of its parameters, so that they outlive a change of buckets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from testbed.compress.layout import Layout
from testbed.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def taken_apart(flat: Tensor, layout: Layout, vector: str = "") -> dict[str, Tensor]:
    """Copies of the parts of ``flat`` (n,), each of its parameter's shape, by ``key`` of its name."""
    return {
        key(part.name, vector): flat[part.offset : part.offset + part.size].clone().view(part.shape)
        for part in layout
    }


def gathered(state: Mapping[str, Tensor], layout: Layout, vector: str = "") -> Tensor | None:
    """The vector (n,) of ``layout`` from what ``taken_apart`` gave for this or other layouts.

    Zeros for parts that ``state`` does not have; None where it has none of them. Raises InputError for
    a part of another size.
    """
    found = {p: state[key(p.name, vector)] for p in layout if key(p.name, vector) in state}
    if not found:
        return None
    flat = next(iter(found.values())).new_zeros(layout.size)
    for part, held in found.items():
        if held.numel() != part.size:
            raise InputError(
                f"{part.name!r} has {part.size} elements, and {held.numel()} of it were remembered"
            )
        flat[part.offset : part.offset + part.size] = held.flatten()
    return flat


def owned(keys: Iterable[str], names: Collection[str]) -> list[str]:
    """Those of a state's keys that are of parameters called ``names``."""
    return [one for one in keys if one in names or one.rpartition("/")[0] in names]


def key(name: str, vector: str) -> str:
    """What a parameter's part of a vector is called in a state."""
    return f"{name}/{vector}" if vector else name
