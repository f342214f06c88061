"""TernGrad: −1, 0 or 1 times a scale."""

from __future__ import annotations

from math import fsum, sqrt
from random import Random
from typing import ClassVar

import numpy as np

from testbed.compress.base import Allocator, BufferPool, Bytes, Floats, Stateless, fresh
from testbed.compress.layout import Layout
from testbed.compress.values import section as values_section
from testbed.compress.values.section import WORD, pieces, put, usable
from testbed.errors import InputError, WireError

_HEAD = WORD


class Ternary(Stateless):
    """x becomes s·sign(x) with probability |x|/s, else 0; s = max|x| (Wen et al., NIPS 2017).

    Before that, values are cut off at ±``clip``·σ, without which one great element makes all others
    0 nearly always; None: not at all. The expected value is the value cut off. σ is taken about 0,
    where gradients have their mean: a vector of equal elements, or of one, is not cut off to
    nothing.

    Five values are one byte in base 3: 1.6 + 32/N bits each, where log₂ 3 = 1.585 is the least.

    Section: s, float32; bytes d₀ + 3·d₁ + 9·d₂ + 27·d₃ + 81·d₄, where d is 0, 1 for +s, 2 for −s.
    """

    code: ClassVar[int] = 6
    keeps_zero: ClassVar[bool] = True

    def __init__(self, layout: Layout, clip: float | None = 2.5) -> None:
        del layout
        number = isinstance(clip, int | float) and not isinstance(clip, bool)
        if clip is not None and not (number and 0.0 < clip < float("inf")):
            raise InputError(
                f"value coding 'ternary': clip {clip!r} is not a positive number",
                hint="It counts standard deviations; null leaves everything as it is",
            )
        self._clip = clip
        self._scratch = BufferPool()

    def section_bytes(self, count: int) -> int:
        """A byte for five, and four."""
        return _HEAD + pieces(count, 5)

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass for the scale, one to write."""
        from testbed.compress.kernels import cpu, sign_codecs

        seed, given = np.uint64(rng.getrandbits(64)), usable(values, np.float32)
        scale, body = self._scale(given), section[_HEAD:]
        kept = self._scratch.array("kept", given.size, np.float32)
        put(section, 0, np.array([scale], np.float32))
        if scale == 0.0:  # nothing is there, or nothing that float32 can scale
            body[:], kept[:] = 0, 0.0
            return kept

        def part(_: int, a: int, b: int) -> None:
            first, last = 5 * a, min(5 * b, given.size)  # whole bytes
            sign_codecs.write_ternary(
                given[first:last], scale, seed, first, body[a:b], kept[first:last]
            )

        cpu.over(body.size, part)
        return kept

    def _scale(self, values: Floats) -> np.float32:
        """The greatest magnitude after clipping."""
        from testbed.compress.kernels import cpu as pool
        from testbed.compress.kernels import sign_codecs as loops_ternary
        from testbed.compress.kernels.compilation import CHUNK, chunks

        sums, tops = np.zeros(chunks(values.size)), np.zeros(chunks(values.size), np.int32)

        def part(_: int, a: int, b: int) -> None:
            own = slice(a // CHUNK, chunks(b))
            loops_ternary.measure_ternary(values[a:b], sums[own], tops[own])

        pool.over(values.size, part)
        greatest: np.float32 = tops.max(initial=0).astype(np.int32).view(np.float32)
        if self._clip is None or not values.size:
            return greatest
        limit = self._clip * sqrt(fsum(sums) / values.size)
        return np.float32(min(limit, float(greatest)))

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = fresh) -> Floats:
        """0 or ± the scale."""
        from testbed.compress.kernels import cpu as pool
        from testbed.compress.kernels import sign_codecs as loops_ternary

        values_section.expect(section, _HEAD + pieces(count, 5), count)
        (scale,) = values_section.scales(section, 0, 1)
        body, out = usable(section[_HEAD:], np.uint8), room(count)
        if scale == 0.0 and body.any():
            raise WireError("values of scale 0 have signs")
        right = pool.over(
            body.size,
            lambda _, a, b: loops_ternary.read_ternary(
                body[a:b], scale, out[5 * a : min(5 * b, count)]
            ),
        )
        if not all(right):
            raise WireError("a byte is not of five ternary digits, or not all of them are used")
        return out
