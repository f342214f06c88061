"""How late very many changes were, counted instead of kept: of a day there are a million on every link. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import frexp

_PARTS = 1024
"""An octave has half as many: values that differ by less than 0.2 % may count as the larger of them."""
_LEAST_S = 1e-6


@dataclass(slots=True)
class Lateness:
    """Values in seconds, each of which stands for those a little smaller than itself."""

    count: int = 0
    _alike: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    """How many, and the largest."""

    def take(self, values: Iterable[float]) -> None:
        """Some more."""
        for value in values:
            many, largest = self._alike.get(_place(value), (0, value))
            self._alike[_place(value)] = many + 1, max(value, largest)
            self.count += 1

    def __iter__(self) -> Iterator[float]:
        """All of them, in no order."""
        for many, largest in self._alike.values():
            for _ in range(many):
                yield largest


def _place(value: float) -> tuple[int, int]:
    """The same for values that are alike."""
    share, octave = frexp(value) if abs(value) >= _LEAST_S else (0.0, 0)
    return octave, round(share * _PARTS)
