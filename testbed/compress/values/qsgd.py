"""QSGD: a few stochastic levels of the norm, in codes of one length or in Elias codes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from testbed.compress.base import Allocator, Bytes, Floats, allocate
from testbed.compress.layout import Layout
from testbed.compress.values.section import (
    WORD,
    BucketScaleOptions,
    BucketValues,
    Draw,
    numbers,
    put,
    usable,
)
from testbed.errors import WireError

_MOST = 127


class QsgdOptions(BucketScaleOptions):
    """Options of ``qsgd``."""

    levels: Annotated[int, Field(ge=1, le=_MOST)] = Field(7, description="Levels of a norm (s).")


class Qsgd(BucketValues[QsgdOptions]):
    """s levels of each bucket's 2-norm (Alistarh et al., NIPS 2017, section 3.1), packed in fixed
    length.

    s·|x|/‖x‖ is rounded up with a probability of its fraction, else down: the expected value is x,
    and E‖Q(x) − x‖² ≤ min(N/s², √N/s)·‖x‖² for a bucket of N. ⌈log₂(2s + 1)⌉ + 32/bucket bits each;
    the paper's Elias codes need fewer where most levels are 0 (s near 1, or much below √N).

    Section: bucket and s, uint32; norm of each bucket, float32; codes s ± level of so many bits
    (``kernels.bit_packing``).
    """

    name, model, code = "qsgd", QsgdOptions, 7
    parameter = "levels"

    @classmethod
    def code_bits(cls, parameter: int) -> int:
        """Enough for 2s + 1 codes."""
        if not 1 <= parameter <= _MOST:
            raise WireError(f"{parameter} levels")
        return (2 * parameter).bit_length()

    def encode_part(
        self, values: Floats, scales: Sequence[Floats], codes: Bytes, kept: Floats, draw: Draw
    ) -> None:
        """Round to a level of the norm, up or down by chance."""
        from testbed.compress.kernels import float_codecs

        bucket, levels = self._head
        bits = self.code_bits(levels)
        float_codecs.write_qsgd(values, bucket, levels, bits, *draw, scales[0], codes, kept)

    @classmethod
    def decode_part(
        cls, codes: Bytes, head: Sequence[int], scales: Sequence[Floats], out: Floats
    ) -> int:
        """Levels times an s-th of their bucket's norm."""
        from testbed.compress.kernels import float_codecs

        bucket, levels = head
        return float_codecs.read_qsgd(codes, bucket, levels, cls.code_bits(levels), scales[0], out)


class QsgdElias(Qsgd):
    """The same levels in the Elias codes of the paper's section 3.1: of each that is not 0 the
    distance from the one before, its sign, and its magnitude, both numbers in Elias' omega code.

    Section: bucket, s, and how many levels are not 0, uint32 each; norms as ``Qsgd`` has them; the
    stream, from the lowest bit of its first byte on. It is as long as the levels need.
    """

    name, code = "qsgd-elias", 11

    def __init__(self, layout: Layout, **options: Any) -> None:
        super().__init__(layout, **options)
        self._used = 0

    def section_bytes(self, count: int) -> int:
        """The most: no level is 0, and all are the greatest."""
        from testbed.compress.kernels import bit_packing

        bits = count * (2 + bit_packing.omega_bits(self.options.levels))
        return self._edges(self._head, count)[0] + WORD + (bits + 7) // 8

    def written_bytes(self, section: Bytes) -> int:
        """Length of the last stream, and of what stands before it."""
        del section
        return self._used

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass to round, one to code."""
        from testbed.compress.kernels import bit_packing

        start, end = self._edges(self._head, values.size)
        fixed = self._scratch.array("fixed", end, np.uint8)
        kept, (bits, levels) = super().write(values, fixed, rng), self._widths(self._head)
        stream = section[start + WORD :]
        count, used = bit_packing.write_elias(fixed[start:], values.size, bits, levels, stream)
        at = put(section, 0, np.array([*self._head, count], np.uint32))
        section[at : start + WORD] = fixed[2 * WORD : start]
        section[start + WORD + used :] = 0
        self._used = start + WORD + used
        return kept

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = allocate) -> Floats:
        """One pass to decode, one to scale."""
        from testbed.compress.kernels import bit_packing

        *head, coded = numbers(section, 0, 3)
        bits, levels = cls._widths(head)
        start, end = cls._edges([max(1, head[0]), levels], count)
        if coded > count or section.size < start + WORD:
            raise WireError(f"{coded} levels of {count} in a value section of {section.size} B")
        fixed = np.empty(end, np.uint8)
        put(fixed, 0, np.array(head, np.uint32))
        fixed[2 * WORD : start] = section[3 * WORD : start + WORD]
        stream = usable(section[start + WORD :], np.uint8)
        if not bit_packing.read_elias(stream, coded, count, bits, levels, fixed[start:]):
            raise WireError("a stream of Elias codes that does not hold the levels it should")
        return super().read(fixed, count, room)

    @classmethod
    def _widths(cls, head: Sequence[int]) -> tuple[int, int]:
        """Bits of a code of ``Qsgd``, and levels."""
        return cls.code_bits(head[1]), head[1]
