"""Stretches of time, merged and in order. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

_JOIN_S = 1e-6
_AT_ONCE = 4096
"""So many are merged together: there may be millions, and they come nearly in order."""


class Spans:
    """Made from ``(from_s, to_s)`` in any order; those that touch become one, whatever the order. 16 bytes each."""

    def __init__(self, spans: Iterable[tuple[float, float]] = ()) -> None:
        self._from, self._to = array("d"), array("d")
        self._new: list[tuple[float, float]] = []
        for from_s, to_s in spans:
            self.add(from_s, to_s)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        self._merge()
        return iter(zip(self._from, self._to, strict=True))

    def __bool__(self) -> bool:
        return bool(self._from or self._new)

    @property
    def total_s(self) -> float:
        """How long they are together."""
        return sum(to_s - from_s for from_s, to_s in self)

    def add(self, from_s: float, to_s: float) -> None:
        """One more."""
        if self._to and self._from[-1] <= from_s <= self._to[-1] + _JOIN_S:
            self._to[-1] = max(self._to[-1], to_s)
            return
        self._new.append((from_s, to_s))
        if len(self._new) >= _AT_ONCE:
            self._merge()

    def touches(self, start_s: float, stop_s: float) -> bool:
        """Whether some of it lies between the two times."""
        self._merge()
        after = bisect_left(self._from, stop_s)
        return after > 0 and self._to[after - 1] > start_s

    def covers(self, start_s: float, stop_s: float) -> bool:
        """Whether all the time between the two lies in one of them."""
        self._merge()
        after = bisect_right(self._from, start_s)
        return after > 0 and self._to[after - 1] >= stop_s

    def _merge(self) -> None:
        if not self._new:
            return
        first = max(0, bisect_left(self._from, min(self._new)[0]) - 1)
        again = [*zip(self._from[first:], self._to[first:], strict=True), *self._new]
        del self._from[first:], self._to[first:]
        self._new.clear()
        for from_s, to_s in sorted(again):
            if self._to and from_s <= self._to[-1] + _JOIN_S:
                self._to[-1] = max(self._to[-1], to_s)
            else:
                self._from.append(from_s)
                self._to.append(to_s)
