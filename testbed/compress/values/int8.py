"""Eight-bit integers with a scale for every bucket."""

from __future__ import annotations

from random import Random
from typing import ClassVar

import numpy as np

from testbed.compress.base import Allocator, BufferPool, Bytes, Floats, Stateless, fresh
from testbed.compress.layout import Layout
from testbed.compress.values import section as values_section
from testbed.compress.values.section import WORD, pieces, put, usable

_HEAD = WORD


class Int8(Stateless):
    """Level q = round(127·x/max|x|), ties to even, within each bucket; read as q·max|x|/127.

    8 + 32/bucket bits each. An element is off by max|x|/254 at most, and the greatest of a bucket
    by nothing. Buckets keep one great element from making all others 0 (block-wise quantization:
    Dettmers et al., ICLR 2022; there with uneven levels).

    Section: bucket uint32; max|x| of each bucket, float32; q of each value, int8 from −127 to 127.
    """

    code: ClassVar[int] = 3
    keeps_zero: ClassVar[bool] = True

    def __init__(self, layout: Layout, bucket: int = 512) -> None:
        del layout
        self._bucket = values_section.bucket_size("int8", bucket)
        self._scratch = BufferPool()

    def section_bytes(self, count: int) -> int:
        """One for each value, four for each bucket, and four."""
        return _HEAD + WORD * pieces(count, self._bucket) + count

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass."""
        from testbed.compress.kernels import cpu, float_codecs

        del rng
        given, bucket = usable(values, np.float32), self._bucket
        peaks = self._scratch.array("peaks", pieces(given.size, bucket), np.float32)
        kept = self._scratch.array("kept", given.size, np.float32)
        levels = section[_HEAD + peaks.nbytes :].view(np.int8)

        def part(_: int, a: int, b: int) -> None:
            own = peaks[a // bucket : pieces(b, bucket)]
            float_codecs.write(given[a:b], bucket, own, levels[a:b], kept[a:b])

        cpu.over(given.size, part)
        put(section, 0, np.array([bucket], np.uint32))
        put(section, _HEAD, peaks)
        return kept

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = fresh) -> Floats:
        """Levels times a 127th of their bucket's scale."""
        from testbed.compress.kernels import cpu as pool
        from testbed.compress.kernels import float_codecs as loops_int8

        bucket = values_section.bucket_in(section)
        buckets = pieces(count, bucket)
        values_section.expect(section, _HEAD + WORD * buckets + count, count)
        peaks = values_section.scales(section, _HEAD, buckets)
        levels = usable(section[_HEAD + peaks.nbytes :].view(np.int8), np.int8)
        out = room(count)

        def part(_: int, a: int, b: int) -> int:
            own = peaks[a // bucket : pieces(b, bucket)]
            return loops_int8.read(levels[a:b], bucket, own, out[a:b])

        values_section.all_right(pool.over(count, part))
        return out
