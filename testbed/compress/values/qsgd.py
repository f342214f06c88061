"""QSGD: a few stochastic levels of the norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from testbed.compress.base import Bytes, Floats
from testbed.compress.values.section import BucketScaleOptions, BucketValues, Draw
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
