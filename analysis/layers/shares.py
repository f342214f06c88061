"""Of each layer and step: elements, those that were sent, bytes and density, over workers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.load import Array, Run
from analysis.timeline.of_run import layer_of


@dataclass(frozen=True)
class Shares:
    """Of one run; arrays of shape (layers, steps), means over the workers that sent the layer in that step,
    not a number where none did."""

    layers: tuple[str, ...]
    """In the order of the forward pass."""
    buckets: tuple[int, ...]
    """By layer, the bucket that it travelled in."""
    steps: Array
    """Numbers of the steps, ascending: shape (steps,)."""
    elements: tuple[int, ...]
    """By layer."""
    sent: Array
    """Elements."""
    asked: Array
    """Elements: density asked for times elements."""
    bytes_up: Array
    """Of the layer's part of the payload: frames' headers are nobody's."""

    @property
    def density(self) -> Array:
        """Achieved."""
        achieved: Array = self.sent / np.array(self.elements, dtype=float)[:, None]
        return achieved

    @property
    def density_asked(self) -> Array:
        """Mean of the parameters' by elements."""
        wanted: Array = self.asked / np.array(self.elements, dtype=float)[:, None]
        return wanted


def shares(run: Run) -> Shares | None:
    """From its ``bucket`` records; None without any."""
    records = run.events.get("bucket", [])
    if not records:
        return None
    layers = _order(records)
    elements = _elements(records)
    steps = np.unique([float(record["step"]) for record in records])
    sums, counts = _added(records, {layer: row for row, layer in enumerate(layers)}, steps)
    means = np.where(counts > 0, sums / np.maximum(1, counts), np.nan)
    return Shares(
        layers=tuple(layers),
        buckets=tuple(layers.values()),
        steps=steps,
        elements=tuple(elements[layer] for layer in layers),
        sent=means[0],
        bytes_up=means[1],
        asked=means[2],
    )


def _order(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Layers and their buckets: buckets come from the last layer to the first, the layers in one in their order."""
    parts = {int(record["bucket"]): record["parts"] for record in records}
    return {layer_of(part): bucket for bucket in sorted(parts, reverse=True) for part in parts[bucket]}  # fmt: skip


def _elements(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    sizes = {part: int(row[0]) for record in records for part, row in record["parts"].items()}
    found: dict[str, int] = {}
    for part, size in sizes.items():
        found[layer_of(part)] = found.get(layer_of(part), 0) + size
    return found


def _added(
    records: Sequence[Mapping[str, Any]], places: Mapping[str, int], steps: Array
) -> tuple[Array, Array]:
    """Sums of elements sent, bytes and elements asked for, shape (3, layers, steps), and how many messages each had."""
    sums = np.zeros((3, len(places), len(steps)))
    counts = np.zeros((len(places), len(steps)))
    columns = {float(step): column for column, step in enumerate(steps)}
    told = set[tuple[str, float, str]]()
    """Which worker's layers are counted, by step: with several servers a layer may be in parts."""
    for record in records:
        column = columns[float(record["step"])]
        for part, (size, sent, length, density) in record["parts"].items():
            sums[:, places[layer_of(part)], column] += (sent, length, density * size)
        for layer in {layer_of(part) for part in record["parts"]}:
            once = str(record["node"]), float(record["step"]), layer
            counts[places[layer], column] += once not in told
            told.add(once)
    return sums, counts
