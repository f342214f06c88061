"""Every operation in plain PyTorch, on any device, and those for an accelerator, with pinned
memory for its results.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from testbed.compress.base import Sparse
from testbed.compress.kernels.base import (
    Fetching,
    GradientStatistics,
    Moments,
    Result,
    Workspace,
    fetched,
)
from testbed.compress.kernels.compilation import DIGITS, MAGNITUDE, as_float32


class Operations:
    """Operations in plain PyTorch, clear rather than fast; subclasses do the same faster.

    All tensors contiguous and on one device; vectors float32 (n,), indices int64 (m,) ascending.
    Magnitudes are compared with a threshold as float32; that of NaN is at or above none. Results
    are the same for any number of threads.
    """

    few_are_free = True
    """To go once more over a few hundredths of a vector costs next to nothing."""
    queues = False
    """Results are on a device that the host has to wait for: ``measuring``, ``adding``,
    ``counting_digits`` and ``taking`` say which, so that several are waited for at once."""

    def measure(self, flat: Tensor) -> GradientStatistics:
        """Σ|x| in float64 and max|x|; one pass."""
        if not flat.numel():
            return GradientStatistics(0.0, 0.0)
        magnitudes = flat.abs()
        return GradientStatistics(
            float(magnitudes.sum(dtype=torch.float64)), float(magnitudes.max())
        )

    def add(self, first: Tensor, second: Tensor, out: Tensor) -> GradientStatistics:
        """``out`` ← ``first`` + ``second`` (may be one of them), and its statistics; one pass."""
        return self.measure(torch.add(first, second, out=out))

    def measuring(self, flat: Tensor) -> Fetching[GradientStatistics]:
        """``measure``, for which others can be waited for too."""
        yield from ()
        return self.measure(flat)

    def adding(self, first: Tensor, second: Tensor, out: Tensor) -> Fetching[GradientStatistics]:
        """``add``, likewise."""
        yield from ()
        return self.add(first, second, out)

    def moments(self, flat: Tensor, threshold: float = 0.0) -> Moments:
        """Return the moments of all |x| ≥ ``threshold``, of finite elements; one pass."""
        kept = flat[self._from(flat, threshold)].abs().double()
        nonzero = kept[kept > 0]
        sums = float(kept.sum()), float(kept.square().sum()), float(nonzero.log().sum())
        return Moments(kept.numel(), nonzero.numel(), *sums)

    def count_above(self, flat: Tensor, threshold: float) -> int:
        """Count the |x| ≥ ``threshold``; one pass."""
        return int(self._from(flat, threshold).sum())

    def select_above(
        self, flat: Tensor, threshold: float, space: Workspace
    ) -> tuple[Tensor, Tensor]:
        """Indices and values of all |x| ≥ ``threshold``, in ``space`` (valid until its next use);
        one pass."""
        del space
        indices = self._from(flat, threshold).nonzero().flatten()
        return indices, flat[indices]

    def digit_counts(self, flat: Tensor, digit: int = 0, prefix: int = 0) -> Tensor:
        """int64 on the host: how many |x| have each value of a digit of their 31 bits; one pass.

        Digits 0, 1, 2 are the upper 11 bits, the next 11 and the last 9 (``compilation.DIGITS``):
        results have shape (2048,), (2048,), (512,). Only elements whose bits above the digit are
        ``prefix`` count.
        """
        shift, width = DIGITS[digit]
        bits = flat.view(torch.int32) & MAGNITUDE
        bits = bits[bits >> shift + width == prefix]
        return torch.bincount(bits >> shift & (1 << width) - 1, minlength=1 << width).cpu()

    def counting_digits(self, flat: Tensor, digit: int, prefix: int) -> Fetching[Tensor]:
        """``digit_counts``, for which others can be waited for too."""
        yield from ()
        return self.digit_counts(flat, digit, prefix)

    def taking(self, flat: Tensor, threshold: float, room: int) -> Fetching[tuple[Tensor, Tensor]]:
        """The result of ``select_above``, on the host; ``room``: how many are expected at most.
        Where there are more, it takes longer."""
        del room
        indices, values = yield self.select_above(flat, threshold, Workspace())
        return indices, values

    def subtract_at(
        self, flat: Tensor, indices: Tensor, values: Tensor, *, known: bool = False
    ) -> None:
        """``flat[indices] -= values``; indices occur once. Raises IndexError, with ``flat`` partly
        changed. ``known``: they are known to be inside, and need not be looked at."""
        del known
        flat.index_add_(0, indices, values, alpha=-1)

    def add_at(self, flat: Tensor, indices: Tensor, values: Tensor, *, known: bool = False) -> None:
        """``flat[indices] += values``, as ``subtract_at``."""
        del known
        flat.index_add_(0, indices, values)

    def _from(self, flat: Tensor, threshold: float) -> Tensor:
        """bool (n,)."""
        return flat.abs() >= float(as_float32(threshold))


_PIECE = 1 << 24
"""Elements that are summed at once: PyTorch makes a float64 copy of what it is to sum in
float64."""


class CudaKernels(Operations):
    """For an accelerator. Where nothing better is known, as the base class does it.

    ``reason``: why these run, and not those that Triton compiles; empty where nothing prevented it.
    """

    few_are_free, queues = False, True

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def measure(self, flat: Tensor) -> GradientStatistics:
        """Both numbers come to the host together."""
        return fetched(self.measuring(flat))

    def add(self, first: Tensor, second: Tensor, out: Tensor) -> GradientStatistics:
        """As ``measure``, of the sum."""
        return fetched(self.adding(first, second, out))

    def measuring(self, flat: Tensor) -> Fetching[GradientStatistics]:
        """Piece by piece."""
        if not flat.numel():
            return GradientStatistics(0.0, 0.0)
        sums, tops = [], []
        for piece in torch.split(flat, _PIECE):
            magnitudes = piece.abs()
            sums.append(magnitudes.sum(dtype=torch.float64))
            tops.append(magnitudes.max().double())
        (both,) = yield [torch.stack([torch.stack(sums).sum(), torch.stack(tops).max()])]
        return GradientStatistics(*both.tolist())

    def adding(self, first: Tensor, second: Tensor, out: Tensor) -> Fetching[GradientStatistics]:
        """Piece by piece."""
        return (yield from self.measuring(torch.add(first, second, out=out)))

    def moments(self, flat: Tensor, threshold: float = 0.0) -> Moments:
        """Zeros in the place of what is below the threshold: its number need not be known."""
        sums = [
            _moments(piece, self._from(piece, threshold)) for piece in torch.split(flat, _PIECE)
        ]
        count, nonzero, *totals = torch.stack(sums).sum(dim=0).tolist()
        return Moments(int(count), int(nonzero), *totals)  # exact up to 2⁵³

    def digit_counts(self, flat: Tensor, digit: int = 0, prefix: int = 0) -> Tensor:
        """All of them come to the host together."""
        return fetched(self.counting_digits(flat, digit, prefix))

    def counting_digits(self, flat: Tensor, digit: int, prefix: int) -> Fetching[Tensor]:
        """Elements with another prefix are counted beyond the end."""
        shift, width = DIGITS[digit]
        bits = flat.view(torch.int32) & MAGNITUDE
        values = (bits >> shift) & (1 << width) - 1
        if digit:
            values.masked_fill_(bits >> shift + width != prefix, 1 << width)
        (counts,) = yield [torch.bincount(values, minlength=(1 << width) + 1)[: 1 << width]]
        return counts

    def taking(self, flat: Tensor, threshold: float, room: int) -> Fetching[tuple[Tensor, Tensor]]:
        """Room for them is made before their number is known; all come to the host together."""
        size = flat.numel()
        ends = numbered(self._from(flat, threshold))
        while True:
            room = min(room, size)
            indices = nth_marked(ends, room)
            values = flat[indices.clamp(max=size - 1)]
            count, indices, values = yield [ends[-1:], indices, values]
            if (number := int(count)) <= room:
                return indices[:number], values[:number]
            room = number


def numbered(marks: Tensor) -> Tensor:
    """How many of ``marks`` (bool (n,)) are set up to each; the device is not waited for."""
    return marks.cumsum(0, dtype=torch.int32 if marks.numel() < 1 << 31 else torch.int64)


def nth_marked(ends: Tensor, count: int) -> Tensor:
    """int64 (``count``,): where the 1st, 2nd, … mark is, by what ``numbered`` gave; where there are
    fewer, n. The device is not waited for."""
    numbers = torch.arange(1, count + 1, dtype=ends.dtype, device=ends.device)
    return torch.searchsorted(ends, numbers)


def _moments(piece: Tensor, chosen: Tensor) -> Tensor:
    """float64 (5,), in the order of ``Moments``."""
    kept = piece.abs().mul_(chosen).double()
    nonzero = kept > 0
    logs = torch.where(nonzero, kept, 1.0).log_()
    counts = (chosen.sum(), nonzero.sum())
    return torch.stack([*counts, kept.sum(), kept.square().sum(), logs.sum()]).double()


@cache
def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which all results come to the host: they pass what is computed meanwhile."""
    return torch.cuda.Stream(device)


class Staging:
    """Page-locked buffers between an accelerator and the host, one for each dtype and direction;
    tensors of the CPU pass untouched. For one thread at a time."""

    def __init__(self) -> None:
        self._down: defaultdict[int, dict[torch.dtype, Tensor]] = defaultdict(dict)
        """Keyed by the number of the transfer, of which ``together`` needs several."""
        self._up: dict[torch.dtype, Tensor] = {}
        self._uploaded: dict[torch.dtype, torch.cuda.Event] = {}
        """When the device has read a buffer, which may be written again then."""

    def to_host(self, sparse: Sparse) -> Sparse:
        """The same elements on the CPU. What it returns is valid until the next call.

        Only what the calling thread has queued is waited for, and nothing that is queued after it.
        """
        if sparse.indices is None:
            return replace(sparse, values=self._fetch([sparse.values])[0])
        indices, values = self._fetch([sparse.indices, sparse.values])
        return replace(sparse, indices=indices, values=values)

    def together(self, works: Sequence[Fetching[Result]]) -> list[Result]:
        """The results of ``works``: what any of them needs next comes to the host with what all
        others need next, and is waited for once. Valid until the next call."""
        results: dict[int, Result] = {}
        answers: dict[int, Sequence[Tensor] | None] = dict.fromkeys(range(len(works)))
        for transfer in itertools.count():
            wanted: dict[int, Sequence[Tensor]] = {}
            for number, answer in answers.items():
                try:
                    wanted[number] = works[number].send(answer)  # type: ignore[arg-type]
                except StopIteration as done:
                    results[number] = done.value
            if not wanted:
                break
            answers = dict(self._fetch_joined(wanted, transfer))
        return [results[number] for number in range(len(works))]

    def _fetch_joined(
        self, wanted: Mapping[int, Sequence[Tensor]], transfer: int
    ) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield each number's tensors on the host: one copy for all of a dtype."""
        kinds: defaultdict[torch.dtype, list[Tensor]] = defaultdict(list)
        for tensor in itertools.chain.from_iterable(wanted.values()):
            kinds[tensor.dtype].append(tensor.reshape(-1))
        joined = self._fetch([torch.cat(own) for own in kinds.values()], transfer)
        pieces = {
            kind: iter(torch.split(whole, [tensor.numel() for tensor in own]))
            for (kind, own), whole in zip(kinds.items(), joined, strict=True)
        }
        for number, tensors in wanted.items():
            yield number, [next(pieces[tensor.dtype]).view(tensor.shape) for tensor in tensors]

    def to_bytes(self, values: Tensor) -> memoryview:
        """The elements of a vector, all of them, as ``to_host`` copies them."""
        whole = self.to_host(Sparse(values.numel(), None, values))
        return whole.values.numpy().data.cast("B")

    def to_device(self, tensor: Tensor, device: torch.device) -> Tensor:
        """``tensor`` (on the CPU) for what is queued on ``device`` from now on; the host does not
        wait for the copy."""
        if device.type == "cpu":
            return tensor
        if (uploaded := self._uploaded.get(tensor.dtype)) is not None:
            uploaded.synchronize()
        buffer = _grown(self._up, tensor)
        on_device = buffer.copy_(tensor).to(device, non_blocking=True)
        self._uploaded[tensor.dtype] = torch.cuda.current_stream(device).record_event()
        return on_device

    def _fetch(self, tensors: Sequence[Tensor], transfer: int = 0) -> list[Tensor]:
        """``tensors``, of one device and different dtypes, on the host, after one wait."""
        device = tensors[0].device
        if device.type == "cpu":
            return [tensor.cpu() for tensor in tensors]
        stream, buffers = copy_stream(device), self._down[transfer]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            down = [_grown(buffers, own).copy_(own, non_blocking=True) for own in tensors]
            copied = stream.record_event()
        copied.synchronize()  # so nothing is freed while it is read
        return down


def _grown(buffers: dict[torch.dtype, Tensor], like: Tensor) -> Tensor:
    """Page-locked memory for ``like``, with room to spare: to lock memory takes long."""
    buffer, count = buffers.get(like.dtype), like.numel()
    if buffer is None or buffer.numel() < count:
        buffer = torch.empty(count + count // 8, dtype=like.dtype, pin_memory=True)
        buffers[like.dtype] = buffer
    return buffer[:count]
