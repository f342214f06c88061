"""What a run's links carried, on one axis of time: all of them together, and each node's own. Pure.

Times in wall seconds after t0. A sample's bits and its use count as even over its time, or between the looks that it tells.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.record.readable import equal_parts
from testbed.scenario.shape import FRAME_BYTES, End

Array = NDArray[np.float64]
LOOK_S = 0.02
"""From look to look."""
LOOKS_S = 4 * 3600.0
"""Of runs that are longer, looks within samples are left out: a day of them would take gigabytes."""
_MOST_LOOKS = 2_000_000
"""Of a link direction; there are no more than a third of it in ``LOOKS_S``."""
_LEAST_BITS = 4 * 8 * FRAME_BYTES
"""Of what a link can carry from look to look: where it is less, packets could be told from pauses no more."""


class TrafficRows:
    """What samples say, taken in one by one and kept packed: 32 bytes each, and of the first ``LOOKS_S`` as many of each look."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self._samples: dict[End, array[float]] = {}
        self._looks: dict[End, array[float]] = {}
        self._finer, self._long = False, False
        self._from_s = inf
        for record in records:
            self.take(record)

    def passing(self, records: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Take in what goes by."""
        for record in records:
            self.take(record)
            yield record

    def take(self, record: Mapping[str, Any]) -> None:
        """One more record; those of other kinds are passed over."""
        if record.get("kind") != "sample" or record["to_s"] <= record["from_s"]:
            return
        end = End(str(record["link"]), record["direction"])
        if end not in self._samples:
            self._samples[end] = array("d")
        self._samples[end].extend(chain.from_iterable(_rows(record, ())))
        if self._long:
            return
        self._from_s = min(self._from_s, float(record["from_s"]))
        if record["to_s"] - self._from_s > LOOKS_S:
            self._looks.clear()
            self._finer, self._long = False, True
            return
        looks = record.get("looks", ())
        self._looks.setdefault(end, array("d")).extend(chain.from_iterable(_rows(record, looks)))
        self._finer = self._finer or bool(looks)

    def tables(self) -> Iterator[tuple[End, Array]]:
        """By link direction, rows of from when to when, bits, and seconds in which it was busy; shape (n, 4), by time."""
        for end, samples in self._samples.items():
            yield end, _by_time(self._looks.get(end, samples))

    def drain(self) -> Iterator[tuple[End, Array]]:
        """The same; what has been handed out is kept no longer."""
        for end in list(self._samples):
            samples = self._samples.pop(end)
            yield end, _by_time(self._looks.pop(end, samples))

    @property
    def axis(self) -> Array:
        """As the link direction with most samples has them; with looks, which are each link's own, at equal distances."""
        tables = (table for _, table in self.tables())
        longest = max(tables, key=len, default=np.zeros((0, 4)))
        if not self._finer:
            return np.concatenate([longest[:1, 0], longest[:, 1]])
        return equal_parts(longest[0, 0], longest[-1, 1] + LOOK_S / 2, LOOK_S, _MOST_LOOKS)


class Traffic:
    """Cumulated over ``times_s``, of shape (n,): ascending, empty without samples. ``TrafficRows`` are used up."""

    def __init__(self, records: Iterable[Mapping[str, Any]] | TrafficRows) -> None:
        rows = records if isinstance(records, TrafficRows) else TrafficRows(records)
        self.times_s: Array = rows.axis
        self.bits: dict[End, Array] = {}
        """Bits that each link direction has carried by then."""
        self._used: dict[End, Array] = {}
        self._busy_s: dict[str | None, Array] = {}
        for end, table in rows.drain():
            times = np.concatenate([table[:1, 0], table[:, 1]])
            for column, cumulated in ((2, self.bits), (3, self._used)):
                total = np.concatenate([[0.0], np.cumsum(table[:, column])])
                cumulated[end] = np.interp(self.times_s, times, total)

    def __len__(self) -> int:
        return max(0, len(self.times_s) - 1)

    @property
    def total_bits(self) -> Array:
        """Bits that all links together have carried by each of the times, shape (n,)."""
        return np.sum(list(self.bits.values()), axis=0) if self.bits else np.zeros(0)

    def use(self, link: str | None = None) -> Array:
        """Share of each time between two of ``times_s`` in which a link was busy, shape (n - 1,).

        That is the time which the bits carried take at the rate asked, or all of it where a queue stood throughout; of
        both directions the larger counts, for in a full-duplex link they can run at once. Of all links (no ``link``)
        the busiest counts.
        """
        shares = [
            np.diff(used) / np.diff(self.times_s)
            for end, used in self._used.items()
            if link is None or end.link == link
        ]
        return np.clip(np.max(shares, axis=0), 0.0, 1.0) if shares else np.zeros(len(self))

    def uses(self) -> Array:
        """Of each link by itself, shape (links, n - 1)."""
        names = sorted({end.link for end in self._used})
        return np.array([self.use(name) for name in names]).reshape(len(names), len(self))

    def busy_s(self, link: str | None = None) -> Array:
        """Seconds in which it was busy by each of ``times_s``, likewise."""
        if link not in self._busy_s:
            lengths = self.use(link) * np.diff(self.times_s)
            self._busy_s[link] = np.concatenate([[0.0], np.cumsum(lengths)])
        return self._busy_s[link]

    def share(self, from_s: float, to_s: float, link: str | None = None) -> float | None:
        """The share of a time in which it was busy; None where there are no samples of it."""
        known = self.bits if link is None else [end for end in self.bits if end.link == link]
        if not known or len(self) == 0 or to_s <= from_s:
            return None
        first, last = np.interp([from_s, to_s], self.times_s, self.busy_s(link))
        return float(last - first) / (to_s - from_s)

    def bytes_of(self, link: str) -> tuple[int, int] | None:
        """Bytes that a link has carried up and down, Ethernet headers counted; None: it was never sampled."""
        found = {end.direction: own[-1] / 8 for end, own in self.bits.items() if end.link == link}
        if not found:
            return None
        return round(found.get("up", 0.0)), round(found.get("down", 0.0))


def _by_time(rows: array[float]) -> Array:
    table = np.frombuffer(rows).reshape(-1, 4)
    if np.any(np.diff(table[:, 0]) <= 0):
        table = table[np.lexsort(table.T[::-1])]
    return table


def _rows(
    sample: Mapping[str, Any], looks: Sequence[Sequence[float]]
) -> Iterator[tuple[float, ...]]:
    """From when to when, bits, and seconds in which the link was busy: between ``looks``, where packets can be told from pauses."""
    from_s, to_s = float(sample["from_s"]), float(sample["to_s"])
    rate, total = float(sample["asked_bits"]) / (to_s - from_s), float(sample["delivered_bits"])
    looks = looks if rate * LOOK_S >= _LEAST_BITS else ()
    before_s, before = from_s, 0.0
    for at_s, carried in [*looks, (to_s, total)]:
        if at_s <= before_s:
            continue
        asked, bits = rate * (at_s - before_s), carried - before
        share = 1.0 if sample["busy"] else min(1.0, bits / asked) if asked > 0 else 0.0
        yield before_s, at_s, bits, share * (at_s - before_s)
        before_s, before = at_s, carried
