"""Few bits with the range of every bucket: CGX's quantizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from testbed.compress.base import Bytes, Floats
from testbed.compress.values.section import BucketScaleOptions, BucketValues, Draw
from testbed.errors import WireError


class MaxMinOptions(BucketScaleOptions):
    """Options of ``maxmin``."""

    bits: Annotated[int, Field(ge=1, le=8)] = Field(4, description="Bits of a code.")
    rounding: Literal["nearest", "stochastic"] = Field(
        "nearest", description="Nearest suits error feedback; CGX rounds stochastically."
    )


class MaxMin(BucketValues[MaxMinOptions]):
    """2^bits levels, evenly from the least to the greatest element of each bucket (CGX: Markov et
    al., Middleware 2022).

    bits + 64/bucket bits each. ``rounding="stochastic"``, as CGX has it: up or down so that the
    expected value is the element, off by less than a level. ``"nearest"``: off by half a level at
    most, which suits error feedback. Both ends of a bucket are kept exactly; 0 is in general not a
    level.

    Section: bucket and bits, uint32; least element of each bucket, then greatest, float32; codes of
    ``bits`` bits (``kernels.bit_packing``).
    """

    name, model, code = "maxmin", MaxMinOptions, 9
    keeps_zero = False
    parameter, scale_count = "bits", 2

    @property
    def _draws(self) -> bool:
        return self.options.rounding == "stochastic"

    @classmethod
    def code_bits(cls, parameter: int) -> int:
        """As the option says."""
        if not 1 <= parameter <= 8:
            raise WireError(f"max-min codes of {parameter} bits")
        return parameter

    def encode_part(
        self, values: Floats, scales: Sequence[Floats], codes: Bytes, kept: Floats, draw: Draw
    ) -> None:
        """Round to a level of the range."""
        from testbed.compress.kernels import float_codecs

        chance, (bucket, bits), (lows, highs) = self._draws, self._head, scales
        float_codecs.write_maxmin(values, bucket, bits, chance, *draw, lows, highs, codes, kept)

    @classmethod
    def decode_part(
        cls, codes: Bytes, head: Sequence[int], scales: Sequence[Floats], out: Floats
    ) -> int:
        """Least element plus code times a level; the greatest itself."""
        from testbed.compress.kernels import float_codecs

        (bucket, bits), (lows, highs) = head, scales
        return float_codecs.read_maxmin(codes, bucket, bits, lows, highs, out)
