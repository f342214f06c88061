"""Few bits with the range of every bucket: CGX's quantizer."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Literal

import numpy as np

from testbed.compress.base import (
    Allocator,
    BufferPool,
    Bytes,
    Floats,
    Stateless,
    fresh,
    whole_number,
)
from testbed.compress.layout import Layout
from testbed.compress.values import section as values_section
from testbed.compress.values.section import WORD, pieces, put, usable
from testbed.errors import InputError, WireError

_HEAD = 2 * WORD


class MaxMin(Stateless):
    """2^bits levels, evenly from the least to the greatest element of each bucket (CGX: Markov et
    al., Middleware 2022).

    bits + 64/bucket bits each. ``rounding="stochastic"``, as CGX has it: up or down so that the
    expected value is the element, off by less than a level. ``"nearest"``: off by half a level at
    most, which suits error feedback. Both ends of a bucket are kept exactly; 0 is in general not a
    level.

    Section: bucket and bits, uint32; least element of each bucket, then greatest, float32; codes of
    ``bits`` bits (``kernels.bit_packing``).
    """

    code: ClassVar[int] = 9
    keeps_zero: ClassVar[bool] = False

    def __init__(
        self,
        layout: Layout,
        bits: int = 4,
        bucket: int = 512,
        rounding: Literal["nearest", "stochastic"] = "nearest",
    ) -> None:
        del layout
        self._bits = whole_number("value coding 'maxmin': bits", bits, 1, 8)
        self._bucket = values_section.bucket_size("maxmin", bucket)
        if rounding not in ("nearest", "stochastic"):
            raise InputError(
                f"value coding 'maxmin': unknown rounding {rounding!r}",
                hint="Known: nearest, stochastic",
            )
        self._draw = rounding == "stochastic"
        self._scratch = BufferPool()

    def section_bytes(self, count: int) -> int:
        """All codes, eight for each bucket, and eight."""
        return _HEAD + 2 * WORD * pieces(count, self._bucket) + pieces(count * self._bits, 8)

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass."""
        from testbed.compress.kernels import cpu, float_codecs

        seed = np.uint64(rng.getrandbits(64) if self._draw else 0)
        given, bucket, bits = usable(values, np.float32), self._bucket, self._bits
        buckets = pieces(given.size, bucket)
        lows = self._scratch.array("lows", buckets, np.float32)
        highs = self._scratch.array("highs", buckets, np.float32)
        kept = self._scratch.array("kept", given.size, np.float32)
        body = section[_HEAD + 2 * WORD * buckets :]

        def part(_: int, a: int, b: int) -> None:
            own = slice(a // bucket, pieces(b, bucket))
            float_codecs.write_maxmin(
                given[a:b],
                bucket,
                bits,
                self._draw,
                seed,
                a,
                lows[own],
                highs[own],
                body[a * bits // 8 : pieces(b * bits, 8)],
                kept[a:b],
            )

        cpu.over(given.size, part)
        put(section, 0, np.array([bucket, bits], np.uint32))
        put(section, put(section, _HEAD, lows), highs)
        return kept

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = fresh) -> Floats:
        """Least element plus code times a level; the greatest itself."""
        from testbed.compress.kernels import cpu as pool
        from testbed.compress.kernels import float_codecs as loops_maxmin

        bucket = values_section.bucket_in(section)
        _, bits = values_section.numbers(section, 0, 2)
        if not 1 <= bits <= 8:
            raise WireError(f"max-min codes of {bits} bits")
        buckets = pieces(count, bucket)
        start = _HEAD + 2 * WORD * buckets
        values_section.expect(section, start + pieces(count * bits, 8), count)
        lows = values_section.scales(section, _HEAD, buckets, signed=True)
        highs = values_section.scales(section, _HEAD + lows.nbytes, buckets, signed=True)
        if (lows > highs).any():
            raise WireError("the least value of a bucket is above its greatest")
        body, out = usable(section[start:], np.uint8), room(count)
        values_section.no_remainder(body, count * bits)

        def part(_: int, a: int, b: int) -> int:
            own, codes = (
                slice(a // bucket, pieces(b, bucket)),
                body[a * bits // 8 : pieces(b * bits, 8)],
            )
            return loops_maxmin.read_maxmin(codes, bucket, bits, lows[own], highs[own], out[a:b])

        values_section.all_right(pool.over(count, part))
        return out
