"""Times of alternatives, taken in turns; and the time that merely reading the memory takes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from testbed.bench.order import interleaved
from testbed.compress.kernels import loops_read, pool

ELEMENTS = 25_000_000
UNJUDGED = f"limits on times: they are stated for {ELEMENTS:,} elements and one thread"

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(slots=True)
class Timed(Generic[T]):
    """One alternative's turns, without those that were for warming up: seconds, and what it returned."""

    seconds: list[float] = field(default_factory=list)
    results: list[T] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        """Of its turns."""
        return median(self.seconds)


def timed(
    alternatives: Mapping[str, Callable[[int], T]],
    repeat: int,
    warm: int = 1,
    say: Say | None = None,
) -> dict[str, Timed[T]]:
    """Call every alternative ``warm + repeat`` times, in turns: A B C, C B A, A B C, …

    Each is given the number of its turn, from 0 on, so that every turn can have another vector; what it
    returns is kept (of the last ``repeat`` turns), and should be small. The collector of garbage rests
    during a call.
    """
    outcomes: dict[str, Timed[T]] = {name: Timed() for name in alternatives}
    gc.collect()
    for turn, name in interleaved(list(alternatives), warm + repeat):
        with _undisturbed():
            begin = perf_counter()
            result = alternatives[name](turn)
            seconds = perf_counter() - begin
        if say is not None:
            say(f"{turn + 1}/{warm + repeat}  {name}: {1e3 * seconds:.2f} ms")
        if turn >= warm:
            outcomes[name].seconds.append(seconds)
            outcomes[name].results.append(result)
    return outcomes


def stated(elements: int, threads: int) -> bool:
    """Whether limits on times hold for such a measurement."""
    return (elements, threads) == (ELEMENTS, 1)


def read_once(memory: NDArray[Any]) -> int:
    """Read every byte of a contiguous array once, as fast as can be, with PyTorch's number of threads."""
    words = memory.view(np.uint8)[: memory.nbytes // 8 * 8].view(np.int64)
    sums = pool.over(words.size, lambda _, first, last: loops_read.read(words[first:last]))
    return sum(sums)


@contextmanager
def _undisturbed() -> Iterator[None]:
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()
