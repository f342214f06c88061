"""Links' samples in equal bins: what was asked and delivered, and whether the link was backlogged throughout."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from analysis.load import Array, Run
from testbed.record.readable import equal_parts

Flags = NDArray[np.bool_]
MOST_BINS = 3_000_000
"""A month of seconds."""


_COLUMNS = ("from_s", "to_s", "asked_bits", "delivered_bits", "busy")


@dataclass(frozen=True)
class Bins:
    """Times in s of model time, rates in bit/s of it; ``busy``: a queue stood at every look. All of shape (n,)."""

    start: Array
    stop: Array
    asked: Array
    delivered: Array
    busy: Flags

    @property
    def error(self) -> Array:
        """Relative error of each; not a number where nothing was asked for."""
        wanted = np.where(self.asked > 0, self.asked, np.nan)
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
        """``rows``: of its samples, five numbers each (``_COLUMNS``), where they are known already."""
        self.link, self.direction = link, direction
        if rows is None:
            rows = _rows(run).get((link, direction), array("d"))
        table = np.array(rows).reshape(-1, 5)
        table = table[np.lexsort(table.T[::-1])]
        self._table = table[:, :4]
        self._table[:, :2] /= run.dilation
        self._busy: Flags = table[:, 4] > 0

    @property
    def name(self) -> str:
        """Link and direction."""
        return f"{self.link} {self.direction}"

    @cached_property
    def samples(self) -> Bins:
        """Each sample as it was recorded: about 100 ms of wall time."""
        start, stop, asked, delivered = self._table.T
        span = stop - start
        return Bins(start, stop, asked / span, delivered / span, self._busy)

    def seconds(self, width_s: float = 1.0) -> Bins:
        """Whole bins from t0 on; a sample's bits are spread evenly over its time."""
        if not len(self._table):
            nothing = np.zeros(0)
            return Bins(nothing, nothing, nothing, nothing, self._busy)
        start, stop, asked, delivered = self._table.T
        # What was looked at a little before the end of a second is that second's.
        edges = equal_parts(0.0, stop[-1] + 1e-3, width_s, MOST_BINS)
        times = np.concatenate([start[:1], stop])
        totals = (np.concatenate([[0.0], np.cumsum(bits)]) for bits in (asked, delivered))
        rates = [np.diff(np.interp(edges, times, total)) / width_s for total in totals]
        first = np.searchsorted(stop, edges[:-1], side="right")
        last = np.searchsorted(start, edges[1:] - 1e-9, side="left")
        busy = np.array(
            [b > a and bool(self._busy[a:b].all()) for a, b in zip(first, last, strict=True)],
            dtype=bool,
        )
        return Bins(edges[:-1], edges[1:], rates[0], rates[1], busy)


def ends(run: Run) -> list[EndSamples]:
    """All link directions that have samples, in the order of the records."""
    return [EndSamples(run, *end, rows) for end, rows in _rows(run).items()]


def _rows(run: Run) -> dict[tuple[str, str], array[float]]:
    """By link and direction, its samples' from when, to when, bits asked and delivered, and whether it was busy."""
    found: dict[tuple[str, str], array[float]] = {}
    for sample in run.links:
        if sample["kind"] != "sample":
            continue
        own = found.setdefault((sample["link"], sample["direction"]), array("d"))
        if sample["to_s"] > sample["from_s"]:
            own.extend(float(sample[name]) for name in _COLUMNS)
    return found
