"""Stretches of time, merged and in order. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

_JOIN_S = 1e-6


class Spans:
    """Made from ``(from_s, to_s)`` in any order; those that touch become one."""

    def __init__(self, spans: Iterable[tuple[float, float]] = ()) -> None:
        self._from: list[float] = []
        self._to: list[float] = []
        for from_s, to_s in sorted(spans):
            if self._to and from_s <= self._to[-1] + _JOIN_S:
                self._to[-1] = max(self._to[-1], to_s)
            else:
                self._from.append(from_s)
                self._to.append(to_s)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return iter(zip(self._from, self._to, strict=True))

    def __bool__(self) -> bool:
        return bool(self._from)

    @property
    def total_s(self) -> float:
        """How long they are together."""
        return sum(to_s - from_s for from_s, to_s in self)

    def touches(self, start_s: float, stop_s: float) -> bool:
        """Whether some of it lies between the two times."""
        after = bisect_left(self._from, stop_s)
        return after > 0 and self._to[after - 1] > start_s

    def covers(self, start_s: float, stop_s: float) -> bool:
        """Whether all the time between the two lies in one of them."""
        after = bisect_right(self._from, start_s)
        return after > 0 and self._to[after - 1] >= stop_s
