"""Plain numpy and PyTorch versions of index and value codings: what tests and benchmarks compare
the compiled loops with, bit for bit.

``ENCODE[name](values, draw, **options)`` gives the section (uint8), ``DECODE[name](section,
count)`` what is read from it, without checks. ``values``: float32 (m,), on the CPU;
``draw(count)``: float32 (count,), uniform in [0, 1), called once at most.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from testbed.compress.indices import low_bits
from testbed.compress.values.lowrank import LIMIT

__all__ = ["DECODE", "ENCODE"]


Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]


def bitmap_write(indices: Indices, size: int) -> Bytes:
    """A mask, packed."""
    mask = np.zeros(size, np.bool_)
    mask[indices] = True
    return np.packbits(mask, bitorder="little")


def bitmap_read(section: Bytes) -> Indices:
    """Places of the ones."""
    places: Indices = np.flatnonzero(np.unpackbits(section, bitorder="little").view(np.bool_))
    return places


def int32_write(indices: Indices) -> Bytes:
    """A cast."""
    return indices.astype("<i4").view(np.uint8)


def int32_read(section: Bytes) -> Indices:
    """The cast back."""
    return section.view("<i4").astype(np.int64)


def elias_fano_write(indices: Indices, size: int) -> Bytes:
    """Low bits from a matrix (m, b) of bits, high parts from a mask."""
    count = indices.size
    low = low_bits(size, count)
    rests = indices - np.arange(count)
    bits = (rests[:, None] >> np.arange(low) & 1).astype(np.uint8)
    marks = np.zeros(count + ((size - count) >> low), np.bool_)
    marks[(rests >> low) + np.arange(count)] = True
    parts = [np.packbits(part, bitorder="little") for part in (bits.ravel(), marks)]
    return np.concatenate(parts)


def elias_fano_read(section: Bytes, size: int, count: int) -> Indices:
    """Return the indices in bytes that ``elias_fano_write`` made."""
    low = low_bits(size, count)
    middle = -(-low * count // 8)
    bits = np.unpackbits(section[:middle], count=low * count, bitorder="little")
    lows = bits.reshape(count, low).astype(np.int64) @ (1 << np.arange(low))
    order = np.arange(count)
    highs = bitmap_read(section[middle:]) - order
    indices: Indices = (highs << low | lows) + order
    return indices


Draw = Callable[[int], Tensor]

_GREATEST = float(torch.finfo(torch.float32).max)


def raw(*tensors: Tensor) -> Tensor:
    """Their bytes, one after the other."""
    return torch.cat([tensor.contiguous().view(torch.uint8).flatten() for tensor in tensors])


def word(*numbers: int) -> Tensor:
    """uint32, as far as int32 goes."""
    return torch.tensor(numbers, dtype=torch.int32)


def packed(codes: Tensor, bits: int) -> Tensor:
    """``codes`` (m,), below 2^bits, in ⌈m·bits/8⌉ bytes: as many as make whole bytes become one
    number."""
    count, kind = (8 // bits, torch.uint8) if 8 % bits == 0 else (8, torch.int64)
    groups = pad(codes.to(torch.uint8), (0, -codes.numel() % count)).view(-1, count)
    numbers = torch.zeros(len(groups), dtype=kind)
    for number in range(count):
        numbers |= groups[:, number].to(kind) << bits * number
    body = numbers.view(torch.uint8).view(len(numbers), -1)
    return (body if count < 8 else body[:, :bits]).reshape(-1)[: -(-codes.numel() * bits // 8)]


def unpacked(body: Tensor, bits: int, count: int) -> Tensor:
    """uint8 (count,)."""
    if 8 % bits == 0:
        numbers, per_word = body, 8 // bits
    else:
        groups = -(-count // 8)
        whole = pad(body, (0, groups * bits - body.numel())).view(groups, bits)
        numbers, per_word = pad(whole, (0, 8 - bits)).contiguous().view(torch.int64).flatten(), 8
    mask = (1 << bits) - 1
    codes = [(numbers >> bits * number & mask).to(torch.uint8) for number in range(per_word)]
    return torch.stack(codes, 1).flatten()[:count]


def rows_of(values: Tensor, bucket: int) -> Tensor:
    """(buckets, bucket); the last one is filled up with its last element."""
    if not values.numel():
        return values.new_empty(0, bucket)
    short = -values.numel() % bucket
    return torch.cat([values, values[-1:].expand(short)]).view(-1, bucket)


def ratio(above: float | Tensor, below: Tensor) -> Tensor:
    """Their quotient in float64; 0 where ``below`` is."""
    whole = torch.as_tensor(above, dtype=torch.float64)  # a number would be multiplied by 1/below
    return torch.where(below > 0, whole / below.where(below > 0, torch.ones_like(below)), 0.0)


def _fp16(values: Tensor, draw: Draw) -> Tensor:
    del draw
    return raw(values.clamp(-65504.0, 65504.0).half())


def _bf16(values: Tensor, draw: Draw) -> Tensor:
    del draw
    limit = float(torch.finfo(torch.bfloat16).max)
    return raw(values.clamp(-limit, limit).bfloat16())


def _int8(values: Tensor, draw: Draw, bucket: int = 512) -> Tensor:
    del draw
    rows = rows_of(values, bucket)
    peaks = rows.abs().amax(1)
    levels = (rows.double() * ratio(127.0, peaks.double())[:, None]).round().to(torch.int8)
    return raw(word(bucket), peaks, levels.flatten()[: values.numel()])


def _int8_read(section: Tensor, count: int) -> Tensor:
    bucket = int(section[:4].clone().view(torch.int32))
    edge = 4 + 4 * -(-count // bucket)
    steps = section[4:edge].clone().view(torch.float32).double() / 127
    levels = pad(section[edge:].view(torch.int8), (0, -count % bucket)).view(-1, bucket)
    return (levels * steps[:, None]).float().flatten()[:count]


def _maxmin(
    values: Tensor, draw: Draw, bits: int = 4, bucket: int = 512, rounding: str = "nearest"
) -> Tensor:
    rows, top = rows_of(values, bucket), float((1 << bits) - 1)
    lows, highs = rows.amin(1) + 0.0, rows.amax(1) + 0.0
    inverse = ratio(top, highs.double() - lows.double())
    scaled = ((rows.double() - lows.double()[:, None]) * inverse[:, None]).flatten()
    if rounding == "stochastic":
        scaled.clamp_(max=top)
        levels = scaled.floor() + (draw(scaled.numel()) < scaled - scaled.floor())
    else:
        levels = scaled.round()
    return raw(word(bucket, bits), lows, highs, packed(levels[: values.numel()], bits))


def _maxmin_read(section: Tensor, count: int) -> Tensor:
    bucket, bits = section[:8].clone().view(torch.int32).tolist()
    buckets = -(-count // bucket)
    edge = 8 + 8 * buckets
    lows, highs = section[8:edge].clone().view(torch.float32).double().view(2, -1, 1)
    levels = pad(unpacked(section[edge:], bits, count), (0, -count % bucket)).view(-1, bucket)
    top = (1 << bits) - 1
    values = torch.where(levels == top, highs, lows + levels * ((highs - lows) / float(top)))
    return values.float().flatten()[:count]


def _qsgd(values: Tensor, draw: Draw, levels: int = 7, bucket: int = 512) -> Tensor:
    count = values.numel()
    rows = pad(values, (0, -count % bucket)).view(-1, bucket).double()
    norms = rows.square().sum(1).sqrt().clamp(max=_GREATEST).float()
    scaled = rows.abs() * ratio(float(levels), norms.double())[:, None]
    scaled = scaled.clamp(max=levels).flatten()
    up = draw(scaled.numel()) < scaled - scaled.floor()
    signed = (scaled.floor() + up) * rows.flatten().sign()
    bits = (2 * levels).bit_length()
    return raw(word(bucket, levels), norms, packed(signed[:count] + levels, bits))


def _qsgd_read(section: Tensor, count: int) -> Tensor:
    bucket, top = section[:8].clone().view(torch.int32).tolist()
    edge = 8 + 4 * -(-count // bucket)
    steps = section[8:edge].clone().view(torch.float32).double() / top
    levels = unpacked(section[edge:], (2 * top).bit_length(), count).int() - top
    rows: Tensor = pad(levels, (0, -count % bucket)).view(-1, bucket) * steps[:, None]
    return rows.float().flatten()[:count]


def _natural(values: Tensor, draw: Draw) -> Tensor:
    bits = values.view(torch.int32)
    exponents = bits >> 23 & 255
    top = min(int(exponents.max()) + 1, 254) if values.numel() else 0
    floor = max(0, top - 127)
    low = exponents <= floor
    share = torch.where(low, values.abs() * 2.0 ** (126 - floor), (bits & 0x7FFFFF) * 2.0**-23)
    codes = (exponents - floor).where(~low, 0) + (draw(values.numel()) < share)
    codes = codes.clamp(max=127)
    signs = (values < 0) & (codes > 0)
    return raw(torch.tensor([floor], dtype=torch.uint8), (codes + 128 * signs).to(torch.uint8))


def _natural_read(section: Tensor, count: int) -> Tensor:
    del count
    floor, codes = int(section[0]), section[1:].int()
    powers = (codes.remainder(128) + floor << 23).view(torch.float32)
    return torch.where(codes > 128, -powers, powers).where(codes > 0, 0.0)


def _ternary(values: Tensor, draw: Draw, clip: float | None = 2.5) -> Tensor:
    scale = float(values.abs().max()) if values.numel() else 0.0
    if clip is not None and values.numel():
        scale = min(scale, clip * float(values.double().square().mean().sqrt()))
    scales = torch.tensor([scale])
    sent = draw(values.numel()) * scales.double() < values.abs() * (scales > 0)
    digits = sent.to(torch.uint8) << (values < 0).to(torch.uint8)
    fives = pad(digits, (0, -values.numel() % 5)).view(-1, 5)
    return raw(scales, sum((fives[:, digit] * 3**digit for digit in range(1, 5)), fives[:, 0]))


def _ternary_read(section: Tensor, count: int) -> Tensor:
    scale = section[:4].clone().view(torch.float32)
    body = section[4:]
    digits = torch.stack([body // 3**digit % 3 for digit in range(5)], 1).flatten()[:count]
    return ((digits & 1).float() - (digits >> 1).float()) * scale


ENCODE: dict[str, Callable[..., Tensor]] = {
    "fp16": _fp16,
    "bf16": _bf16,
    "int8": _int8,
    "maxmin": _maxmin,
    "qsgd": _qsgd,
    "natural": _natural,
    "ternary": _ternary,
}
DECODE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "fp16": lambda section, _: section.view(torch.float16).float(),
    "bf16": lambda section, _: section.view(torch.bfloat16).float(),
    "int8": _int8_read,
    "maxmin": _maxmin_read,
    "qsgd": _qsgd_read,
    "natural": _natural_read,
    "ternary": _ternary_read,
}


Shapes = list[tuple[int, int]]


def _sign(values: Tensor, draw: Draw, scale: float | None = None) -> Tensor:
    """``scale`` None: the mean magnitude."""
    del draw
    mean = (
        values.abs().sum(dtype=torch.float64) / max(values.numel(), 1) if scale is None else scale
    )
    scales = torch.as_tensor(mean).float().reshape(1)
    return raw(scales, packed((values < 0) & (scales > 0), 1))


def _sign_read(section: Tensor, count: int) -> Tensor:
    scale = section[:4].clone().view(torch.float32)
    return torch.where(unpacked(section[4:], 1, count).bool(), -scale, scale)


def _onebit(values: Tensor, draw: Draw, shapes: Shapes | None = None) -> Tensor:
    """``shapes``: rows and columns of each matrix; None for one group."""
    del draw
    means = []
    for matrix in _matrices(values, shapes or [(1, values.numel())]):
        below = (matrix < 0).sum(1)
        sums = (
            matrix.clamp(min=0).sum(1, dtype=torch.float64),
            matrix.clamp(max=0).sum(1, dtype=torch.float64),
        )
        counts = torch.stack([matrix.shape[1] - below, below], 1).clamp(min=1)
        means.append((torch.stack(sums, 1) / counts).float() + 0.0)
    table = [number for shape in shapes or [] for number in shape]
    return raw(word(len(shapes or []), *table), *means, packed(values < 0, 1))


def _onebit_read(section: Tensor, count: int) -> Tensor:
    (matrices,) = section[:4].clone().view(torch.int32).tolist()
    at = 4 + 8 * matrices
    shapes = section[4:at].clone().view(torch.int32).view(-1, 2).tolist() or [(1, count)]
    end = at + 8 * sum(rows for rows, _ in shapes)
    parts = []
    for below in _matrices(unpacked(section[end:], 1, count).bool(), shapes):
        means = section[at : at + 8 * len(below)].clone().view(torch.float32).view(-1, 2, 1)
        parts.append(torch.where(below, means[:, 1], means[:, 0]).flatten())
        at += 8 * len(below)
    return torch.cat(parts)


def _matrices(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """Views of what follows one another."""
    sizes = [rows * columns for rows, columns in shapes]
    return [
        part.view(*shape) for part, shape in zip(flat.split_with_sizes(sizes), shapes, strict=True)
    ]


def _lowrank(
    values: Tensor, draw: Draw, shapes: Shapes, rank: int = 2, ordered: bool = False
) -> Tensor:
    """A first step: nothing is known of Q. ``shapes``: of all matrices.

    ``ordered``: sums in the order of the loops, which takes long, and gives the same bits.
    """
    table: list[int] = []
    pieces: list[Tensor] = []
    ranks = [rank if rank * sum(shape) < shape[0] * shape[1] else 0 for shape in shapes]
    starts = [own * columns for own, (_, columns) in zip(ranks, shapes, strict=True)]
    drawn = (2.0 * draw(sum(starts)) - 1.0).split_with_sizes(starts)
    matrices = _matrices(values, shapes)
    for own, shape, matrix, start in zip(ranks, shapes, matrices, drawn, strict=True):
        table += [*shape, own]
        times = _times_in_order if ordered else torch.matmul
        pieces += _factors(matrix, start.view(own, -1), times) if own else [matrix]
    return raw(word(len(shapes), *table), *pieces)


def _factors(matrix: Tensor, start: Tensor, times: Callable[..., Tensor]) -> list[Tensor]:
    rank = len(start)
    left = times(start.double(), matrix.double().T)
    for k in range(rank):
        before = _length(left[k])
        for j in range(k):
            left[k] -= (left[j] * left[k]).cumsum(0)[-1] * left[j]
        after = _length(left[k])
        left[k] *= 1.0 / after if after > 1e-10 * before else 0.0
    left, limit = left.float(), LIMIT / rank
    if times is _times_in_order:  # one row of the matrix after the other
        right = (left.double()[:, :, None] * matrix.double()).cumsum(1)[:, -1]
    else:
        right = left.double() @ matrix.double()
    return [left, right.clamp(-limit, limit).float()]


def _times_in_order(right: Tensor, transposed: Tensor) -> Tensor:
    """Return the matrix product, each element added up in 64 sums beside each other."""
    terms = pad(right[:, None] * transposed.T, (0, -right.shape[1] % 64))
    sums: Tensor = terms.view(*terms.shape[:2], -1, 64).cumsum(2)[:, :, -1].cumsum(2)[:, :, -1]
    return sums


def _length(vector: Tensor) -> Tensor:
    return vector.square().cumsum(0)[-1].sqrt()


def _lowrank_read(section: Tensor, count: int) -> Tensor:
    (matrices,) = section[:4].clone().view(torch.int32).tolist()
    at = 4 + 12 * matrices
    parts = []
    for rows, columns, rank in section[4:at].clone().view(torch.int32).view(-1, 3).tolist():
        length = rank * (rows + columns) if rank else rows * columns
        numbers = section[at : at + 4 * length].clone().view(torch.float32)
        at += 4 * length
        parts.append(_product(numbers, rows, columns, rank) if rank else numbers)
    del count
    return torch.cat(parts)


def _product(numbers: Tensor, rows: int, columns: int, rank: int) -> Tensor:
    left = numbers[: rank * rows].view(rank, rows)
    right = numbers[rank * rows :].view(rank, columns)
    out = torch.zeros(rows, columns)
    for k in range(rank):
        out += left[k][:, None] * right[k][None]
    return out.flatten()


ENCODE.update(sign=_sign, onebit=_onebit, lowrank=_lowrank)
DECODE.update(sign=_sign_read, onebit=_onebit_read, lowrank=_lowrank_read)
