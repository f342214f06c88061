"""Several threads for one pass over a big vector: the only place in ``compress`` that knows of threads.

Parts are whole chunks, and what is made of them is put together in their order, so that the number of
threads, which is PyTorch's, shows in the time alone. Loops run without the interpreter's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from typing import TypeVar

from testbed.compress.kernels.grid import CHUNK, chunks

T = TypeVar("T")

_LEAST = 2
"""Chunks that are worth a thread: waking one takes as long as reading some 100,000 elements."""


def over(size: int, work: Callable[[int, int, int], T]) -> list[T]:
    """``work(number, first, last)`` for each part of ``range(size)``; what it returns, in order.

    There is always one part at least. With one thread the caller does it all, and no pool is made.
    """
    own, *others = parts(size)
    if not others:
        return [work(0, *own)]
    executor = _executor(os.getpid())
    started = [executor.submit(work, i, *part) for i, part in enumerate(others, start=1)]
    try:
        mine = work(0, *own)
    finally:
        wait(started)  # also after an error: nobody may still write when the caller goes on
    return [mine, *(future.result() for future in started)]


def parts(size: int) -> list[tuple[int, int]]:
    """First and last element of each thread's share: whole chunks, about as many for each."""
    import torch

    count = chunks(size)
    threads = max(1, min(torch.get_num_threads(), count // _LEAST))
    edges = [min(size, count * thread // threads * CHUNK) for thread in range(threads + 1)]
    return list(pairwise(edges))


@cache
def _executor(process: int) -> ThreadPoolExecutor:
    """Threads are started when first needed, and a forked process needs its own."""
    del process
    return ThreadPoolExecutor(os.cpu_count(), "kernels")
