"""``reference`` for the codings whose sections speak of shapes: signs with their means, and factors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from testbed.compress.values.factors import LIMIT
from testbed.compress.values.reference import DECODE, ENCODE, Draw, packed, raw, unpacked, word

__all__ = ["DECODE", "ENCODE"]

Shapes = list[tuple[int, int]]


def _sign(values: Tensor, draw: Draw, scale: float | None = None) -> Tensor:
    """``scale`` None: the mean magnitude."""
    del draw
    mean = (
        values.abs().sum(dtype=torch.float64) / max(values.numel(), 1) if scale is None else scale
    )
    held = torch.as_tensor(mean).float().reshape(1)
    return raw(held, packed((values < 0) & (held > 0), 1))


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
    found = []
    for below in _matrices(unpacked(section[end:], 1, count).bool(), shapes):
        means = section[at : at + 8 * len(below)].clone().view(torch.float32).view(-1, 2, 1)
        found.append(torch.where(below, means[:, 1], means[:, 0]).flatten())
        at += 8 * len(below)
    return torch.cat(found)


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
    """Of 64 sums beside each other."""
    terms = pad(right[:, None] * transposed.T, (0, -right.shape[1] % 64))
    sums: Tensor = terms.view(*terms.shape[:2], -1, 64).cumsum(2)[:, :, -1].cumsum(2)[:, :, -1]
    return sums


def _length(vector: Tensor) -> Tensor:
    return vector.square().cumsum(0)[-1].sqrt()


def _lowrank_read(section: Tensor, count: int) -> Tensor:
    (matrices,) = section[:4].clone().view(torch.int32).tolist()
    at = 4 + 12 * matrices
    found = []
    for rows, columns, rank in section[4:at].clone().view(torch.int32).view(-1, 3).tolist():
        length = rank * (rows + columns) if rank else rows * columns
        numbers = section[at : at + 4 * length].clone().view(torch.float32)
        at += 4 * length
        found.append(_product(numbers, rows, columns, rank) if rank else numbers)
    del count
    return torch.cat(found)


def _product(numbers: Tensor, rows: int, columns: int, rank: int) -> Tensor:
    left = numbers[: rank * rows].view(rank, rows)
    right = numbers[rank * rows :].view(rank, columns)
    out = torch.zeros(rows, columns)
    for k in range(rank):
        out += left[k][:, None] * right[k][None]
    return out.flatten()


ENCODE.update(sign=_sign, onebit=_onebit, lowrank=_lowrank)
DECODE.update(sign=_sign_read, onebit=_onebit_read, lowrank=_lowrank_read)
