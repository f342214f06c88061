"""TernGrad: −1, 0 or 1 times a scale."""

from __future__ import annotations

from math import fsum, sqrt
from random import Random
from typing import Annotated

import numpy as np
from pydantic import Field

from testbed.compress.base import Allocator, Bytes, Floats, Options, Values, allocate
from testbed.compress.values.section import WORD, expect, pieces, put, scales, usable
from testbed.errors import WireError

_HEAD = WORD


class TernaryOptions(Options):
    """Options of ``ternary``."""

    clip: Annotated[float, Field(gt=0.0)] | None = Field(
        2.5, description="Standard deviations at which values are cut off; null: not at all."
    )


class Ternary(Values[TernaryOptions]):
    """x becomes s·sign(x) with probability |x|/s, else 0; s = max|x| (Wen et al., NIPS 2017).

    Before that, values are cut off at ±``clip``·σ, without which one great element makes all others
    0 nearly always; None: not at all. The expected value is the value cut off. σ is taken about 0,
    where gradients have their mean: a vector of equal elements, or of one, is not cut off to
    nothing.

    Five values are one byte in base 3: 1.6 + 32/N bits each, where log₂ 3 = 1.585 is the least.

    Section: s, float32; bytes d₀ + 3·d₁ + 9·d₂ + 27·d₃ + 81·d₄, where d is 0, 1 for +s, 2 for −s.
    """

    name, model, code = "ternary", TernaryOptions, 6

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
        from testbed.compress.kernels import cpu, sign_codecs
        from testbed.compress.kernels.compilation import CHUNK, chunks

        sums, tops = np.zeros(chunks(values.size)), np.zeros(chunks(values.size), np.int32)

        def part(_: int, a: int, b: int) -> None:
            own = slice(a // CHUNK, chunks(b))
            sign_codecs.measure_ternary(values[a:b], sums[own], tops[own])

        cpu.over(values.size, part)
        greatest: np.float32 = tops.max(initial=0).astype(np.int32).view(np.float32)
        if self.options.clip is None or not values.size:
            return greatest
        limit = self.options.clip * sqrt(fsum(sums) / values.size)
        return np.float32(min(limit, float(greatest)))

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = allocate) -> Floats:
        """0 or ± the scale."""
        from testbed.compress.kernels import cpu, sign_codecs

        expect(section, _HEAD + pieces(count, 5), count)
        (scale,) = scales(section, 0, 1)
        body, out = usable(section[_HEAD:], np.uint8), room(count)
        if scale == 0.0 and body.any():
            raise WireError("values of scale 0 have signs")
        right = cpu.over(
            body.size,
            lambda _, a, b: sign_codecs.read_ternary(
                body[a:b], scale, out[5 * a : min(5 * b, count)]
            ),
        )
        if not all(right):
            raise WireError("a byte is not of five ternary digits, or not all of them are used")
        return out
