"""Small objects of numbers by name, packed: of a day's steps there are a million."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import overload


class PackedNumbers(Sequence[dict[str, float]]):
    """Objects of few kinds of keys: 8 bytes of each number, and 16 of each object."""

    def __init__(self) -> None:
        self._names: list[tuple[str, ...]] = []
        self._known: dict[tuple[str, ...], int] = {}
        self._kinds, self._begins, self._numbers = array("l"), array("q", [0]), array("d")

    def append(self, numbers: Mapping[str, float]) -> None:
        """One more."""
        names = tuple(numbers)
        if names not in self._known:
            self._known[names] = len(self._names)
            self._names.append(names)
        self._kinds.append(self._known[names])
        self._numbers.extend(numbers.values())
        self._begins.append(len(self._numbers))

    def __len__(self) -> int:
        return len(self._kinds)

    def __iter__(self) -> Iterator[dict[str, float]]:
        return (self[at] for at in range(len(self)))

    @overload
    def __getitem__(self, at: int) -> dict[str, float]: ...
    @overload
    def __getitem__(self, at: slice) -> list[dict[str, float]]: ...
    def __getitem__(self, at: int | slice) -> dict[str, float] | list[dict[str, float]]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        names, begin, end = self._names[self._kinds[at]], self._begins[at], self._begins[at + 1]
        return dict(zip(names, self._numbers[begin:end], strict=True))
