"""What a run's links carried, on one axis of time: all of them together, and each node's own. Pure.

Times in wall seconds after t0. A sample's bits and its use count as even over its time, or between the looks that it tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.scenario.shape import FRAME_BYTES, End

Array = NDArray[np.float64]
LOOK_S = 0.02
"""From look to look."""
_LEAST_BITS = 4 * 8 * FRAME_BYTES
"""Of what a link can carry from look to look: where it is less, packets could be told from pauses no more."""


class Traffic:
    """Cumulated over ``times_s``, of shape (n,): ascending, empty without samples."""

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        rows: dict[End, list[tuple[float, ...]]] = {}
        finer = False
        for record in records:
            if record.get("kind") == "sample" and record["to_s"] > record["from_s"]:
                end = End(str(record["link"]), record["direction"])
                rows.setdefault(end, []).extend(_rows(record))
                finer = finer or bool(record.get("looks"))
        tables = {end: np.array(sorted(own)) for end, own in rows.items()}
        self.times_s: Array = _axis(tables.values(), finer)
        self.bits: dict[End, Array] = {}
        """Bits that each link direction has carried by then."""
        self._used: dict[End, Array] = {}
        self._busy_s: dict[str | None, Array] = {}
        for end, table in tables.items():
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


def _axis(tables: Iterable[Array], finer: bool) -> Array:
    """As the link direction with most samples has them; with looks, which are each link's own, at equal distances."""
    longest = max(tables, key=len, default=np.zeros((0, 4)))
    if not finer:
        return np.concatenate([longest[:1, 0], longest[:, 1]])
    return np.arange(longest[0, 0], longest[-1, 1] + LOOK_S / 2, LOOK_S)


def _rows(sample: Mapping[str, Any]) -> Iterator[tuple[float, ...]]:
    """From when to when, bits, and seconds in which the link was busy: between its looks, where it tells them."""
    from_s, to_s = float(sample["from_s"]), float(sample["to_s"])
    rate, total = float(sample["asked_bits"]) / (to_s - from_s), float(sample["delivered_bits"])
    looks = sample.get("looks", ()) if rate * LOOK_S >= _LEAST_BITS else ()
    before_s, before = from_s, 0.0
    for at_s, carried in [*looks, (to_s, total)]:
        if at_s <= before_s:
            continue
        asked, bits = rate * (at_s - before_s), carried - before
        share = 1.0 if sample["busy"] else min(1.0, bits / asked) if asked > 0 else 0.0
        yield before_s, at_s, bits, share * (at_s - before_s)
        before_s, before = at_s, carried
