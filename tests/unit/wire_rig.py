"""Messages for the tests of payloads."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import torch
from hypothesis import strategies as st

from testbed.compress import indices as seeded
from testbed.compress.base import Sparse
from testbed.compress.indices import IndexCoding

SPARSE_CODINGS = [IndexCoding.BITMAP, IndexCoding.INT32, IndexCoding.ELIAS_FANO]


SEED = 0x0123456789ABCDEF


def chosen_by(seed: int, size: int, count: int) -> Sparse:
    """Elements that a seed chooses, with values that tell them apart."""
    indices = torch.from_numpy(seeded.indices(size, count, seed))
    return Sparse(size, indices, torch.arange(1.0, count + 1), seed)


GOLDEN = {
    IndexCoding.DENSE: (
        Sparse(2, None, torch.tensor([1.0, -2.0])),
        "4e525747 02 00 00 00 0200000000000000 0200000000000000 0800000000000000 0000803f 000000c0",
    ),
    IndexCoding.BITMAP: (
        Sparse(10, torch.tensor([1, 9]), torch.tensor([1.0, -2.0])),
        "4e525747 02 01 00 00 0a00000000000000 0200000000000000 0800000000000000 0000803f 000000c0 0202",
    ),
    IndexCoding.INT32: (
        Sparse(100_000, torch.tensor([1, 65536]), torch.tensor([1.0, -2.0])),
        "4e525747 02 02 00 00 a086010000000000 0200000000000000 0800000000000000 0000803f 000000c0"
        " 01000000 00000100",
    ),
    # not sent before each: 5 7 27 27 46 65 65 92; b = 3: low bits 5 7 3 3 6 1 1 4, high parts
    # 0 0 3 3 5 8 8 11, so that ones stand at bits 0 1 5 6 9 13 14 18
    IndexCoding.ELIAS_FANO: (
        Sparse(100, torch.tensor([5, 8, 29, 30, 50, 70, 71, 99]), torch.ones(8)),
        "4e525747 02 03 00 00 6400000000000000 0800000000000000 2000000000000000"
        + " 0000803f" * 8
        + " fde684 636204",
    ),
    IndexCoding.SEED: (
        chosen_by(SEED, 1000, 2),
        "4e525747 02 04 00 00 e803000000000000 0200000000000000 0800000000000000 0000803f 00000040"
        " efcdab8967452301",
    ),
}  # fmt: skip


def same(left: Sparse, right: Sparse) -> bool:
    if left.size != right.size or left.seed != right.seed:
        return False
    if left.indices is not None and right.indices is not None:
        return torch.equal(left.indices, right.indices) and torch.equal(left.values, right.values)
    return left.indices is right.indices and torch.equal(left.values, right.values)


def whole(sparse: Sparse) -> torch.Tensor:
    """The vector that a message stands for."""
    full = torch.zeros(sparse.size)
    full[slice(None) if sparse.indices is None else sparse.indices] = sparse.values
    return full


@st.composite
def messages(draw: st.DrawFn) -> Sparse:
    size = draw(st.integers(1, 400))
    chosen = sorted(draw(st.sets(st.integers(0, size - 1), max_size=size)))
    values = torch.arange(1, len(chosen) + 1, dtype=torch.float32)
    return Sparse(size, torch.tensor(chosen, dtype=torch.int64), values)


SOME = 4_000
"""Bytes of Python's own small objects."""


def allocated(work: Callable[[], object]) -> int:
    """Most bytes that ``work`` held at a time, numpy's among them: the least of three calls.

    The first one may load compiled loops. During another, pytest-xdist's thread may receive tests.
    """
    most = []
    for _ in range(3):
        tracemalloc.start()
        try:
            work()
            most.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(most)
