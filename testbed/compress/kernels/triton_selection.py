"""Selection of all elements from a magnitude on, in kernels that Triton compiles, and how those of
this package are compiled and launched.

One reading of the vector, in which each program keeps what is chosen of its share, in order; then
these are put one behind the other, while their number comes to the host.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from testbed.compress.kernels.base import Workspace
from testbed.compress.kernels.compilation import as_float32

PICKERS = 2048
"""Most programs that pick elements: their ends lie closer together than those of half as many."""
WARPS, MANY_WARPS = 8, 16
"""Groups of 32 threads of a program; many: to pick elements."""
SHORT_TILE, LONG_TILE = 1024, 4096
"""Elements that a program handles at once: what was picked, and of a vector."""
_FIRST_SHARE, _MOST_SHARE = 32, 4
"""Programs keep up to one element in so many: at first, and at most where some had more."""

_WORD, _ENDED = tl.constexpr(32), tl.constexpr(44)


def kernel(function: Callable[..., Any]) -> Any:
    """A kernel that is compiled once, whatever its numbers and the alignment of its pointers."""
    names = [
        name
        for name, parameter in signature(function).parameters.items()
        if "constexpr" not in str(parameter.annotation)
    ]
    return triton.jit(function, do_not_specialize=names, do_not_specialize_on_alignment=names)


@kernel
def left_of(size: tl.tensor, start: tl.tensor, tile: tl.constexpr) -> tl.tensor:
    """int32: how many elements there are of the tile that begins at ``start``."""
    return tl.minimum(size - start, tile).to(tl.int32)


@kernel
def _ones(word: tl.tensor) -> tl.tensor:
    """How many bits are set, of int32: in pairs, in fours, in bytes, and all four bytes."""
    word -= (word >> 1) & 0x5555_5555
    word = (word & 0x3333_3333) + ((word >> 2) & 0x3333_3333)
    return (((word + (word >> 4)) & 0x0F0F_0F0F) * 0x0101_0101) >> 24


@kernel
def _marked(x: tl.tensor, threshold: tl.tensor, left: tl.tensor, tile: tl.constexpr) -> tl.tensor:
    """int32 (tile / 32,): a bit for each element, which says whether it is among the first ``left``
    and its magnitude ≥ ``threshold``."""
    each = tl.arange(0, tile)
    chosen = (tl.abs(x) >= threshold) & (each < left)
    return tl.sum(tl.reshape(tl.where(chosen, 1 << (each % _WORD), 0), (tile // _WORD, _WORD)), 1)


@kernel
def _taken(
    flat: tl.tensor,
    first: tl.tensor,
    word: tl.tensor,
    kept: tl.tensor,
    count: tl.tensor,
    slots: tl.tensor,
    tile: tl.constexpr,
) -> tl.tensor:
    """Elements of a tile of ``flat`` (from ``first`` on) whose bit is set go to ``kept``, behind
    ``count`` others; the first ``slots``. Each word gives its lowest bit that is left, in turn.
    Returns how many there are then."""
    number = _ones(word)
    ends = count + tl.cumsum(number, 0)
    slot, base = ends - number, first + tl.arange(0, tile // _WORD) * _WORD
    for _ in range(0, tl.where(count < slots, tl.max(number, 0), 0)):
        lowest = (word & -word).to(tl.float32).to(tl.int32, bitcast=True)
        at = base + ((lowest >> 23) & 255) - 127
        fits = (word != 0) & (slot < slots)
        tl.store(kept + slot, _packed(tl.load(flat + at, fits, 0.0), at), fits)
        word &= word - 1
        slot += 1
    return tl.max(ends, 0)


@kernel
def _packed(x: tl.tensor, index: tl.tensor) -> tl.tensor:
    """int64: the bits of ``x`` and, above them, ``index``."""
    return (index.to(tl.int64) << 32) | (x.to(tl.uint32, bitcast=True).to(tl.int64))


@kernel
def _picked(
    flat: tl.tensor,
    kept: tl.tensor,
    counts: tl.tensor,
    reported: tl.tensor,
    state: tl.tensor,
    words: tl.tensor,
    threshold: tl.tensor,
    size: tl.tensor,
    tiles: tl.tensor,
    slots: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Elements of each program's ``tiles`` tiles, which follow each other, whose magnitude is
    ≥ ``threshold``: their number, and the first ``slots`` of them with their indices from the
    program's first element on. ``reported``: on the host; the number of all, written by the program
    that ends last, and of each. ``state``: 0, before and after: how many ended, above the number of
    theirs. ``words``: memory for the bits of a tile, from which they come back in another order of
    threads, once for all turns of a loop."""
    own = tl.program_id(0).to(tl.int64)
    start, each, row = own * tiles * tile, tl.arange(0, tile), tl.arange(0, tile // _WORD)
    end, count = left_of(size, start, tiles * tile), tl.zeros((), tl.int32)
    whole = end // tile * tile
    flat += start
    kept += own * slots
    words += own * (tile // _WORD)
    for first in range(0, whole, tile):  # without masks, which cost a third of the rate
        tl.store(words + row, _marked(tl.load(flat + first + each), threshold, tile, tile))
        tl.debug_barrier()
        word = tl.load(words + row)
        count = _taken(flat, first, word, kept, count, slots, tile)
        tl.debug_barrier()
    if whole < end:
        x = tl.load(flat + whole + each, each < end - whole, 0.0)
        tl.store(words + row, _marked(x, threshold, end - whole, tile))
        tl.debug_barrier()
        count = _taken(flat, whole, tl.load(words + row), kept, count, slots, tile)
    tl.store(counts + own, count)
    tl.store(reported + 1 + own, count)
    before = tl.atomic_add(state, (tl.full((), 1, tl.int64) << _ENDED) + count)
    if (before >> _ENDED) == tl.num_programs(0) - 1:
        tl.store(state, 0)
        tl.store(reported, (before & ((tl.full((), 1, tl.int64) << _ENDED) - 1)) + count)


@kernel
def _gathered(
    flat: tl.tensor,
    kept: tl.tensor,
    counts: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    threshold: tl.tensor,
    size: tl.tensor,
    tiles: tl.tensor,
    slots: tl.tensor,
    room: tl.tensor,
    most: tl.constexpr,
    share: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Elements that programs of ``_picked`` kept, one behind the other; the first ``room``. Where
    one had too few slots, its elements are read again. ``share`` elements at once."""
    own, each = tl.program_id(0).to(tl.int64), tl.arange(0, most)
    number = tl.load(counts + each, each < tl.num_programs(0), 0)
    count = tl.sum(tl.where(each == own, number, 0), 0)
    before = tl.sum(tl.where(each < own, number, 0).to(tl.int64), 0)
    start, each = own * tiles * tile, tl.arange(0, share)
    kept += own * slots
    if count <= slots:
        for first in range(0, count, share):
            inside = first + each < count
            position = before + first + each
            pair = tl.load(kept + first + each, inside, 0)
            fits = inside & (position < room)
            tl.store(indices + position, start + (pair >> 32), fits)
            tl.store(values + position, pair.to(tl.int32).to(tl.float32, bitcast=True), fits)
    else:
        end = left_of(size, start, tiles * tile)
        for first in range(0, end, share):
            x = tl.load(flat + start + first + each, first + each < end, 0.0)
            chosen = (tl.abs(x) >= threshold) & (first + each < end)
            ranks = tl.cumsum(chosen.to(tl.int32), 0)
            position = before + ranks - 1
            fits = chosen & (position < room)
            tl.store(indices + position, start + first + each, fits)
            tl.store(values + position, x, fits)
            before += tl.max(ranks, 0)


def select_above(flat: Tensor, threshold: float, space: Workspace) -> tuple[Tensor, Tensor]:
    """Indices and values of all |x| ≥ ``threshold``, in ``space`` (valid until its next use).

    Where there was too little room, the second part is done again.
    """
    size, edge = size_of(flat), float(as_float32(threshold))
    tiles = max(triton.cdiv(size, LONG_TILE * PICKERS), 1)
    programs, room = triton.cdiv(size, tiles * LONG_TILE), size // _FIRST_SHARE + LONG_TILE
    small, large = (flat.new_empty(0, dtype=kind) for kind in (torch.int32, torch.int64))
    report = _Report(large, space)
    most = min(report.greatest() * programs, size // _MOST_SHARE)
    kept, counts = (
        space.whole("kept", max(room, most), large),
        space.tensor("counts", PICKERS, small),
    )
    words = space.tensor("words", programs * LONG_TILE // 32, small)
    shares = (edge, size, tiles, min(kept.numel() // max(programs, 1), tiles * LONG_TILE))
    report.begin(programs)
    picking = (kept, counts, report.host, report.state, words, *shares)
    launch(_picked, programs, flat, *picking, warps=MANY_WARPS, tile=LONG_TILE)
    report.end()
    while True:
        indices = space.whole("indices", room, large)
        values = space.whole("values", room, flat.detach())
        room = min(indices.numel(), values.numel())
        gathering = (kept, counts, indices, values, *shares, room)
        constants = {"most": PICKERS, "share": SHORT_TILE, "tile": LONG_TILE}
        launch(_gathered, programs, flat, *gathering, **constants)
        if (count := report.wait()) <= room:
            return indices[:count], values[:count]
        room = count


class _Report:
    """Numbers that ``_picked`` writes to page-locked memory in ``space``. What is queued after it
    is not waited for. Triton's interpreter has no queues."""

    def __init__(self, like: Tensor, space: Workspace) -> None:
        if "report" not in space.tensors:
            host = torch.zeros(1 + PICKERS, dtype=like.dtype, pin_memory=like.is_cuda)
            space.tensors.update(report=host, state=like.new_zeros(1))
        self.host, self.state = space.tensors["report"], space.tensors["state"]
        self._numbers, self._device = self.host.numpy(), like.device
        self._around: list[torch.cuda.Event] = []

    def greatest(self) -> int:
        """The most that a program chose the last time."""
        return int(self._numbers[1:].max())

    def begin(self, programs: int) -> None:
        """Before the kernel is queued."""
        self._numbers[:] = 0
        self._numbers[0] = -1 if programs else 0
        self.end()

    def end(self) -> None:
        """After that."""
        if self._device.type == "cuda":
            self._around.append(torch.cuda.current_stream(self._device).record_event())

    def wait(self) -> int:
        """Block until the number of all is there; return it. Once the device has come to the kernel
        it is looked for: that is quicker by some 20 µs than to be woken at the kernel's end."""
        if self._around:
            begun, ended = self._around
            begun.synchronize()
            while self._numbers[0] < 0 and not ended.query():
                pass
            if self._numbers[0] < 0:
                ended.synchronize()
        return int(self._numbers[0])


def size_of(flat: Tensor) -> int:
    """Number of elements. Raises TypeError for what kernels do not read."""
    if flat.dtype != torch.float32 or flat.dim() != 1 or not flat.is_contiguous():
        raise TypeError(f"a contiguous float32 vector is needed, not {flat.dtype} {flat.shape}")
    return flat.numel()


def launch(
    kernel: Any,
    programs: int,
    like: Tensor,
    *arguments: Any,
    warps: int = WARPS,
    **constants: Any,
) -> None:
    """On the device of ``like``, which is the first argument."""
    if programs:
        with torch.cuda.device_of(like):
            kernel[(programs,)](like, *arguments, **constants, num_warps=warps)
