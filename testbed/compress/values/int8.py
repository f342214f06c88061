"""Eight-bit integers with a scale for every bucket. How many bytes they are: ``section.py``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.compress.base import Bytes, Floats
from testbed.compress.values.section import BucketScaleOptions, BucketValues, Draw


class Int8(BucketValues[BucketScaleOptions]):
    """Level q = round(127·x/max|x|), ties to even, within each bucket; read as q·max|x|/127.

    8 + 32/bucket bits each. An element is off by max|x|/254 at most, and the greatest of a bucket
    by nothing. Buckets keep one great element from making all others 0 (block-wise quantization:
    Dettmers et al., ICLR 2022; there with uneven levels).

    Section: bucket uint32; max|x| of each bucket, float32; q of each value, int8 from −127 to 127.
    """

    name, model, code = "int8", BucketScaleOptions, 3

    @classmethod
    def code_bits(cls, parameter: int) -> int:
        """Eight."""
        del parameter
        return 8

    def encode_part(
        self, values: Floats, scales: Sequence[Floats], codes: Bytes, kept: Floats, draw: Draw
    ) -> None:
        """Divide by the greatest magnitude."""
        from testbed.compress.kernels import float_codecs

        del draw
        float_codecs.write(values, self.options.bucket, scales[0], codes.view(np.int8), kept)

    @classmethod
    def decode_part(
        cls, codes: Bytes, head: Sequence[int], scales: Sequence[Floats], out: Floats
    ) -> int:
        """Levels times a 127th of their bucket's scale."""
        from testbed.compress.kernels import float_codecs

        return float_codecs.read(codes.view(np.int8), head[0], scales[0], out)

    @property
    def _draws(self) -> bool:
        return False
