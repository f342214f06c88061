"""Records that stay in their files, and packed small objects, for runs of a day: there are
millions.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import orjson
from numpy.typing import NDArray

Record = Mapping[str, Any]
Records = Sequence[Record]
Events = Mapping[str, Records]
"""Records of a run, by kind."""
T = TypeVar("T")
OPEN = 64
"""Files that are open at a time."""


class PackedSequence(Sequence[T], ABC):
    """A sequence whose items are made when they are asked for."""

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        numbers = range(len(self))[at]
        return self._at(numbers) if isinstance(numbers, int) else [*map(self._at, numbers)]

    @abstractmethod
    def _at(self, at: int) -> T:
        """The item of that number, from 0 on."""


class Files:
    """Reads parts of files, by their numbers; of many the one opened first is closed again."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._open: dict[int, int] = {}
        weakref.finalize(self, _close, self._open)

    def read(self, number: int, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on."""
        if number not in self._open:
            if len(self._open) >= OPEN:
                first = next(iter(self._open))
                os.close(self._open.pop(first))
            flags = os.O_RDONLY | os.O_CLOEXEC
            self._open[number] = os.open(self._paths[number], flags)
        return os.pread(self._open[number], size, offset)


class Stored(PackedSequence[dict[str, Any]]):
    """JSON objects, each a line of one of ``files``. Of each, 16 bytes are kept."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._numbers, self._sizes, self._offsets = array("i"), array("i"), array("q")

    def add(self, number: int, offset: int, size: int) -> None:
        """One more line."""
        self._numbers.append(number)
        self._sizes.append(size)
        self._offsets.append(offset)

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        places = zip(self._numbers, self._offsets, self._sizes, strict=True)
        return (orjson.loads(self._files.read(*location)) for location in places)

    def _at(self, at: int) -> dict[str, Any]:
        data = self._files.read(self._numbers[at], self._offsets[at], self._sizes[at])
        record: dict[str, Any] = orjson.loads(data)
        return record


def stored(
    paths: Sequence[Path],
    lines: Callable[[Path], Iterable[tuple[int, dict[str, Any]]]],
    kinds: Collection[str] | None,
) -> dict[str, Sequence[dict[str, Any]]]:
    """Return records by kind (of ``kinds``). ``lines``: each line's length and object."""
    files, by_kind = Files(paths), dict[str, Stored]()
    for number, path in enumerate(paths):
        offset = 0
        for size, record in lines(path):
            kind = str(record.get("kind"))
            if kinds is None or kind in kinds:
                if kind not in by_kind:
                    by_kind[kind] = Stored(files)
                by_kind[kind].add(number, offset, size)
            offset += size
    return {**by_kind}


class Joined(PackedSequence[T]):
    """Several sequences as one, without a copy."""

    def __init__(self, *parts: Sequence[T]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._parts)

    def _at(self, at: int) -> T:
        part = iter(self._parts)
        while at >= len(own := next(part)):
            at -= len(own)
        return own[at]


def by_number(
    *sequences: Records, key: str = "step"
) -> Iterator[tuple[list[Mapping[str, Any]], ...]]:
    """Yield, for every number that records have under ``key``, ascending: its records of each
    sequence, in their order there.

    Of each record 16 bytes are kept besides.
    """
    columns = [numbers_of(records, key) for records in sequences]
    orders = [np.argsort(own, kind="stable") for own in columns]
    every = np.unique(np.concatenate(columns)) if columns else np.zeros(0, np.int64)
    edges = []
    for own, order in zip(columns, orders, strict=True):
        ascending = own[order]
        edges.append(
            (np.searchsorted(ascending, every), np.searchsorted(ascending, every, "right"))
        )
    del columns
    for at in range(len(every)):
        yield tuple(
            [records[int(row)] for row in order[begins[at] : ends[at]]]
            for records, order, (begins, ends) in zip(sequences, orders, edges, strict=True)
        )


def numbers_of(records: Records, key: str) -> NDArray[np.int64]:
    """Return the numbers that records have under ``key``, shape (n,)."""
    return np.fromiter((int(record[key]) for record in records), np.int64, len(records))


def _close(files: dict[int, int]) -> None:
    for file in files.values():
        os.close(file)


class PackedNumbers(PackedSequence[dict[str, float]]):
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

    def _at(self, at: int) -> dict[str, float]:
        names, begin, end = self._names[self._kinds[at]], self._begins[at], self._begins[at + 1]
        return dict(zip(names, self._numbers[begin:end], strict=True))
