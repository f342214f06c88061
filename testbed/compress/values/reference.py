"""Every value coding in plain PyTorch: what the loops are compared with, bit for bit, and timed against.

``ENCODE[name](values, draw, **options)`` gives the section (uint8), ``DECODE[name](section, count)`` what
is read from it, without checks. ``values``: float32 (m,), on the CPU; ``draw(count)``: float32 (count,),
uniform in [0, 1), called once at most. Signs and factors are in ``reference_groups``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from testbed.compress.kernels.random import uniforms_on

Draw = Callable[[int], Tensor]

_GREATEST = float(torch.finfo(torch.float32).max)


def hashed(seed: int) -> Draw:
    """What the loops draw from a seed."""

    def draw(count: int) -> Tensor:
        out = torch.empty(count)
        uniforms_on(seed, out)
        return out

    return draw


def raw(*tensors: Tensor) -> Tensor:
    """Their bytes, one after the other."""
    return torch.cat([tensor.contiguous().view(torch.uint8).flatten() for tensor in tensors])


def word(*numbers: int) -> Tensor:
    """uint32, as far as int32 goes."""
    return torch.tensor(numbers, dtype=torch.int32)


def packed(codes: Tensor, bits: int) -> Tensor:
    """``codes`` (m,), below 2^bits, in ⌈m·bits/8⌉ bytes: as many as make whole bytes become one number."""
    many, kind = (8 // bits, torch.uint8) if 8 % bits == 0 else (8, torch.int64)
    groups = pad(codes.to(torch.uint8), (0, -codes.numel() % many)).view(-1, many)
    numbers = torch.zeros(len(groups), dtype=kind)
    for place in range(many):
        numbers |= groups[:, place].to(kind) << bits * place
    body = numbers.view(torch.uint8).view(len(numbers), -1)
    return (body if many < 8 else body[:, :bits]).reshape(-1)[: -(-codes.numel() * bits // 8)]


def unpacked(body: Tensor, bits: int, count: int) -> Tensor:
    """uint8 (count,)."""
    if 8 % bits == 0:
        numbers, many = body, 8 // bits
    else:
        groups = -(-count // 8)
        whole = pad(body, (0, groups * bits - body.numel())).view(groups, bits)
        numbers, many = pad(whole, (0, 8 - bits)).contiguous().view(torch.int64).flatten(), 8
    mask = (1 << bits) - 1
    codes = [(numbers >> bits * place & mask).to(torch.uint8) for place in range(many)]
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
    found = torch.where(levels == top, highs, lows + levels * ((highs - lows) / float(top)))
    return found.float().flatten()[:count]


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
    held = torch.tensor([scale])
    sent = draw(values.numel()) * held.double() < values.abs() * (held > 0)
    digits = sent.to(torch.uint8) << (values < 0).to(torch.uint8)
    fives = pad(digits, (0, -values.numel() % 5)).view(-1, 5)
    return raw(held, sum((fives[:, place] * 3**place for place in range(1, 5)), fives[:, 0]))


def _ternary_read(section: Tensor, count: int) -> Tensor:
    scale = section[:4].clone().view(torch.float32)
    body = section[4:]
    digits = torch.stack([body // 3**place % 3 for place in range(5)], 1).flatten()[:count]
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
