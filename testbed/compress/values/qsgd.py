"""QSGD: a few stochastic levels of the norm."""

from __future__ import annotations

from random import Random
from typing import ClassVar

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
from testbed.errors import WireError

_HEAD = 2 * WORD
_MOST = 127


class Qsgd(Stateless):
    """s levels of each bucket's 2-norm (Alistarh et al., NIPS 2017, section 3.1), packed in fixed
    length.

    s·|x|/‖x‖ is rounded up with a probability of its fraction, else down: the expected value is x,
    and E‖Q(x) − x‖² ≤ min(N/s², √N/s)·‖x‖² for a bucket of N. ⌈log₂(2s + 1)⌉ + 32/bucket bits each;
    the paper's Elias codes need fewer where most levels are 0 (s near 1, or much below √N).

    Section: bucket and s, uint32; norm of each bucket, float32; codes s ± level of so many bits
    (``kernels.bit_packing``).
    """

    code: ClassVar[int] = 7
    keeps_zero: ClassVar[bool] = True

    def __init__(self, layout: Layout, levels: int = 7, bucket: int = 512) -> None:
        del layout
        self._levels = whole_number("value coding 'qsgd': levels", levels, 1, _MOST)
        self._bits = (2 * self._levels).bit_length()
        self._bucket = values_section.bucket_size("qsgd", bucket)
        self._scratch = BufferPool()

    def section_bytes(self, count: int) -> int:
        """All codes, four for each bucket, and eight."""
        return _HEAD + WORD * pieces(count, self._bucket) + pieces(count * self._bits, 8)

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass."""
        from testbed.compress.kernels import cpu, float_codecs

        seed = np.uint64(rng.getrandbits(64))
        given, bucket, bits = usable(values, np.float32), self._bucket, self._bits
        norms = self._scratch.array("norms", pieces(given.size, bucket), np.float32)
        kept = self._scratch.array("kept", given.size, np.float32)
        body = section[_HEAD + norms.nbytes :]

        def part(_: int, a: int, b: int) -> None:
            float_codecs.write_qsgd(
                given[a:b],
                bucket,
                self._levels,
                bits,
                seed,
                a,
                norms[a // bucket : pieces(b, bucket)],
                body[a * bits // 8 : pieces(b * bits, 8)],
                kept[a:b],
            )

        cpu.over(given.size, part)
        put(section, 0, np.array([bucket, self._levels], np.uint32))
        put(section, _HEAD, norms)
        return kept

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = fresh) -> Floats:
        """Levels times an s-th of their bucket's norm."""
        from testbed.compress.kernels import cpu as pool
        from testbed.compress.kernels import float_codecs as loops_qsgd

        bucket = values_section.bucket_in(section)
        _, levels = values_section.numbers(section, 0, 2)
        if not 1 <= levels <= _MOST:
            raise WireError(f"{levels} levels")
        bits, buckets = (2 * levels).bit_length(), pieces(count, bucket)
        start = _HEAD + WORD * buckets
        values_section.expect(section, start + pieces(count * bits, 8), count)
        norms = values_section.scales(section, _HEAD, buckets)
        body, out = usable(section[start:], np.uint8), room(count)
        values_section.no_remainder(body, count * bits)

        def part(_: int, a: int, b: int) -> int:
            own_body = body[a * bits // 8 : pieces(b * bits, 8)]
            own = norms[a // bucket : pieces(b, bucket)]
            return loops_qsgd.read_qsgd(own_body, bucket, levels, bits, own, out[a:b])

        values_section.all_right(pool.over(count, part))
        return out
