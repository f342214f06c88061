"""Series that figures are made of, in model time: a job's steps, the share that each layer has of
a step's bytes and elements, and links' samples in equal bins. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.load import Array, Run
from analysis.timeline import layer_of
from testbed.records.job_steps import JobStep
from testbed.records.run_directory import equal_parts


def timed(run: Run) -> list[JobStep]:
    """Those of its steps of which both ends are known."""
    return [step for step in run.known.steps if step.start_s is not None]


def edges(run: Run) -> Array:
    """When its timed steps begin, and when the last one ends: shape (n + 1,); empty without any."""
    steps = timed(run)
    if not steps:
        return np.zeros(0)
    return np.array([steps[0].start_s, *(step.end_s for step in steps)]) / run.dilation


def lengths(run: Run) -> Array:
    """Seconds of each of them, shape (n,)."""
    seconds: Array = np.diff(edges(run))
    return seconds


def shares(run: Run) -> Array:
    """In what share of each of them the busiest link was busy, shape (n,); not a number where that
    is not known."""
    known = [run.traffic.share(step.start_s or 0.0, step.end_s) for step in timed(run)]
    return np.array([np.nan if share is None else share for share in known])


def phases_s(run: Run) -> dict[str, float]:
    """Mean seconds of every phase that was marked, and what was in none; empty where no phases were
    marked."""
    steps = timed(run)
    names = list(dict.fromkeys(name for step in steps for name in step.phases_s))
    if not names:
        return {}
    means = {
        name: float(np.mean([step.phases_s.get(name, 0.0) for step in steps])) / run.dilation
        for name in names
    }
    return {**means, NO_PHASE: max(0.0, float(lengths(run).mean()) - sum(means.values()))}


NO_PHASE = "(in no phase)"


@dataclass(frozen=True)
class LayerShares:
    """Layers of one run; arrays of shape (layers, steps), means over the workers that sent the
    layer in that step, not a number where none did."""

    layers: tuple[str, ...]
    """In the order of the forward pass."""
    buckets: tuple[int, ...]
    """The bucket that each layer travelled in."""
    steps: Array
    """Numbers of the steps, ascending: shape (steps,)."""
    elements: tuple[int, ...]
    """The number of elements of each layer."""
    sent: Array
    """Elements."""
    requested: Array
    """Elements: density asked for times elements."""
    bytes_up: Array
    """Bytes of the layer's part of the payload: frames' headers are nobody's."""

    @property
    def density(self) -> Array:
        """Achieved."""
        achieved: Array = self.sent / np.array(self.elements, dtype=float)[:, None]
        return achieved

    @property
    def density_asked(self) -> Array:
        """Mean of the parameters' by elements."""
        wanted: Array = self.requested / np.array(self.elements, dtype=float)[:, None]
        return wanted


def layer_phase_shares(run: Run) -> LayerShares | None:
    """From its ``bucket`` records; None without any."""
    records = run.events.get("bucket", [])
    if not records:
        return None
    layers = _order(records)
    elements = _elements(records)
    steps = np.unique([float(record["step"]) for record in records])
    sums, counts = _added(records, {layer: row for row, layer in enumerate(layers)}, steps)
    means = np.where(counts > 0, sums / np.maximum(1, counts), np.nan)
    return LayerShares(
        layers=tuple(layers),
        buckets=tuple(layers.values()),
        steps=steps,
        elements=tuple(elements[layer] for layer in layers),
        sent=means[0],
        bytes_up=means[1],
        requested=means[2],
    )


def _order(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Layers and their buckets: buckets come from the last layer to the first, the layers in one in
    their order."""
    parts = {int(record["bucket"]): record["parts"] for record in records}
    return {
        layer_of(part): bucket for bucket in sorted(parts, reverse=True) for part in parts[bucket]
    }


def _elements(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    sizes = {part: int(row[0]) for record in records for part, row in record["parts"].items()}
    elements: dict[str, int] = {}
    for part, size in sizes.items():
        elements[layer_of(part)] = elements.get(layer_of(part), 0) + size
    return elements


def _added(
    records: Sequence[Mapping[str, Any]], places: Mapping[str, int], steps: Array
) -> tuple[Array, Array]:
    """Sums of elements sent, bytes and elements asked for, shape (3, layers, steps), and how many
    messages each had."""
    sums = np.zeros((3, len(places), len(steps)))
    counts = np.zeros((len(places), len(steps)))
    columns = {float(step): column for column, step in enumerate(steps)}
    counted = set[tuple[str, float, str]]()
    """Which worker's layers are counted, by step: with several servers a layer may be in parts."""
    for record in records:
        column = columns[float(record["step"])]
        for part, (size, sent, length, density) in record["parts"].items():
            sums[:, places[layer_of(part)], column] += (sent, length, density * size)
        for layer in {layer_of(part) for part in record["parts"]}:
            once = str(record["node"]), float(record["step"]), layer
            counts[places[layer], column] += once not in counted
            counted.add(once)
    return sums, counts


Flags = NDArray[np.bool_]
MOST_BINS = 3_000_000
"""A month of seconds."""


_COLUMNS = ("from_s", "to_s", "asked_bits", "delivered_bits", "busy", "backlog_bytes")


@dataclass(frozen=True)
class LinkBins:
    """Times in s of model time, rates in bit/s of it; ``busy``: a queue stood at every look. All of
    shape (n,)."""

    start: Array
    stop: Array
    requested: Array
    delivered: Array
    busy: Flags

    @property
    def error(self) -> Array:
        """Relative error of each; not a number where nothing was asked for."""
        wanted = np.where(self.requested > 0, self.requested, np.nan)
        relative: Array = (self.delivered - wanted) / wanted
        return relative


class EndSamples:
    """The samples of one link direction."""

    def __init__(
        self,
        run: Run,
        link: str,
        direction: str,
        rows: array[float] | None = None,
    ) -> None:
        """``rows``: of its samples, six numbers each (``_COLUMNS``), where they are known
        already."""
        self.link, self.direction = link, direction
        if rows is None:
            rows = _rows(run).get((link, direction), array("d"))
        table = np.array(rows).reshape(-1, 6)
        table = table[np.lexsort(table.T[::-1])]
        self._table = table[:, :4]
        self._table[:, :2] /= run.dilation
        self._busy: Flags = table[:, 4] > 0
        self.backlogs: Array = table[:, 5]
        """Largest queue of each sample in bytes, shape (n,)."""

    @property
    def name(self) -> str:
        """Link and direction."""
        return f"{self.link} {self.direction}"

    @cached_property
    def samples(self) -> LinkBins:
        """Each sample as it was recorded: about 100 ms of wall time."""
        start, stop, requested, delivered = self._table.T
        span = stop - start
        return LinkBins(start, stop, requested / span, delivered / span, self._busy)

    def seconds(self, width_s: float = 1.0) -> LinkBins:
        """Whole bins from t0 on; a sample's bits are spread evenly over its time."""
        if not len(self._table):
            nothing = np.zeros(0)
            return LinkBins(nothing, nothing, nothing, nothing, self._busy)
        start, stop, requested, delivered = self._table.T
        # What was looked at a little before the end of a second is that second's.
        edges = equal_parts(0.0, stop[-1] + 1e-3, width_s, MOST_BINS)
        times = np.concatenate([start[:1], stop])
        totals = (np.concatenate([[0.0], np.cumsum(bits)]) for bits in (requested, delivered))
        rates = [np.diff(np.interp(edges, times, total)) / width_s for total in totals]
        first = np.searchsorted(stop, edges[:-1], side="right")
        last = np.searchsorted(start, edges[1:] - 1e-9, side="left")
        busy = np.array(
            [b > a and bool(self._busy[a:b].all()) for a, b in zip(first, last, strict=True)],
            dtype=bool,
        )
        return LinkBins(edges[:-1], edges[1:], rates[0], rates[1], busy)


def ends(run: Run) -> list[EndSamples]:
    """All link directions that have samples, in the order of the records."""
    return [EndSamples(run, *end, rows) for end, rows in _rows(run).items()]


def _rows(run: Run) -> dict[tuple[str, str], array[float]]:
    """Return the samples of each link and direction: from when, to when, bits asked and delivered,
    and whether it was busy."""
    rows: dict[tuple[str, str], array[float]] = {}
    for sample in run.links:
        if sample["kind"] == "sample" and sample["to_s"] > sample["from_s"]:
            own = rows.setdefault((sample["link"], sample["direction"]), array("d"))
            own.extend(float(sample.get(name, 0)) for name in _COLUMNS)
    return rows
