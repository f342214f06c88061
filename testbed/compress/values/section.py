"""Common parts of value sections: scales, packed codes, the checks of a reader, and codings whose
buckets have scales of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from random import Random
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pydantic import AfterValidator, Field

from testbed.compress.base import Allocator, Bytes, Floats, Options, Values, allocate
from testbed.compress.layout import Layout
from testbed.errors import WireError

WORD = 4
"""Bytes of a float32 and of a uint32."""
LARGEST_BUCKET = 1 << 18
"""Chunks that threads share out are whole buckets."""


def pieces(count: int, size: int) -> int:
    """How many buckets of ``size`` (or bytes of so many) hold ``count``; the last may be short."""
    return -(-count // size)


def numbers(section: Bytes, at: int, count: int) -> list[int]:
    """``count`` uint32 from byte ``at`` on. Raises WireError where the section ends before."""
    if section.size < at + WORD * count:
        raise WireError(f"a value section of {section.size} B ends within its parameters")
    words: list[int] = section[at : at + WORD * count].view("<u4").tolist()
    return words


def expect(section: Bytes, length: int, count: int) -> None:
    """Raise WireError unless the section has ``length`` bytes."""
    if section.size != length:
        raise WireError(f"a value section of {section.size} B where {count} values take {length}")


def put(section: Bytes, at: int, array: NDArray[Any]) -> int:
    """Write float32 or uint32 from byte ``at`` on, aligned or not; returns the end."""
    end = at + array.nbytes
    section[at:end].view(array.dtype.newbyteorder("<"))[:] = array
    return end


def scales(section: Bytes, at: int, count: int, *, signed: bool = False) -> Floats:
    """``count`` float32 from byte ``at`` on. Raises WireError for NaN, infinity, −0, and below 0 if
    not ``signed``."""
    values = section[at : at + WORD * count].view("<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise WireError("a scale is not finite")
    below = np.signbit(values)
    if (below & (values == 0.0)).any() if signed else below.any():
        raise WireError("a scale is below 0")
    return values


def usable(array: NDArray[Any], kind: DTypeLike) -> NDArray[Any]:
    """The same elements as loops are compiled for: contiguous, aligned, writable. Copied only if
    need be."""
    return np.require(array, kind, ["C", "A", "W"])


def no_remainder(body: Bytes, bits: int) -> None:
    """Raise WireError unless all bits of ``body`` after the first ``bits`` are 0."""
    if bits % 8 and body[-1] >> bits % 8:
        raise WireError("bits after the last value are set")


def all_right(wrong: Iterable[int]) -> None:
    """Raise WireError unless every part of a vector said −1: no bucket is wrong."""
    if any(bucket >= 0 for bucket in wrong):
        raise WireError("levels do not fit their bucket's scale")


def _power_of_two(size: int) -> int:
    if size & (size - 1):
        raise ValueError(
            f"it is not a power of two; write for example {1 << size.bit_length() - 1}"
        )
    return size


class BucketScaleOptions(Options):
    """Options of codings whose buckets have scales of their own."""

    bucket: Annotated[int, Field(ge=8, le=LARGEST_BUCKET), AfterValidator(_power_of_two)] = Field(
        512, description="Values that share a scale; a power of two, for buckets begin with a byte."
    )


Given = TypeVar("Given", bound=BucketScaleOptions)
Draw = tuple[np.uint64, int]
"""Seed of random numbers, and the number of the first one."""


class BucketValues(Values[Given]):
    """Codes of equally many bits, and one or two float32 scales for each bucket.

    Section: bucket, uint32; ``parameter``, uint32, where the coding has one; the first scale of
    each bucket, then the second, float32; codes (``kernels.bit_packing``).
    """

    parameter: ClassVar[str | None] = None
    """Option that readers need."""
    scale_count: ClassVar[int] = 1
    """Scales of each bucket: 1, which is not below 0, or 2 in ascending order."""

    def __init__(self, layout: Layout, **options: Any) -> None:
        super().__init__(layout, **options)
        self._head = [self.options.bucket]
        if self.parameter is not None:
            self._head.append(getattr(self.options, self.parameter))

    @classmethod
    @abstractmethod
    def code_bits(cls, parameter: int) -> int:
        """Bits of a code. Raises WireError for a parameter that cannot be."""

    @abstractmethod
    def encode_part(
        self, values: Floats, scales: Sequence[Floats], codes: Bytes, kept: Floats, draw: Draw
    ) -> None:
        """Fill scales, codes and ``kept`` for ``values``, which are of whole buckets."""

    @classmethod
    @abstractmethod
    def decode_part(
        cls, codes: Bytes, head: Sequence[int], scales: Sequence[Floats], out: Floats
    ) -> int:
        """Fill ``out``, of whole buckets; the first bucket that is wrong, or −1."""

    def section_bytes(self, count: int) -> int:
        """All codes, the scales of each bucket, and the head."""
        return self._edges(self._head, count)[1]

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass."""
        from testbed.compress.kernels import cpu

        seed = np.uint64(rng.getrandbits(64) if self._draws else 0)
        given, bucket = usable(values, np.float32), self.options.bucket
        bits, buckets = self.code_bits(self._head[-1]), pieces(given.size, bucket)
        names = [f"scale {number}" for number in range(self.scale_count)]
        all_scales = [self._scratch.array(name, buckets, np.float32) for name in names]
        kept = self._scratch.array("kept", given.size, np.float32)
        codes = section[self._edges(self._head, given.size)[0] :]

        def part(_: int, a: int, b: int) -> None:
            own = [scale[a // bucket : pieces(b, bucket)] for scale in all_scales]
            body = codes[a * bits // 8 : pieces(b * bits, 8)]
            self.encode_part(given[a:b], own, body, kept[a:b], (seed, a))

        cpu.over(given.size, part)
        at = put(section, 0, np.array(self._head, np.uint32))
        for scale in all_scales:
            at = put(section, at, scale)
        return kept

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = allocate) -> Floats:
        """One pass."""
        from testbed.compress.kernels import cpu

        (bucket,) = numbers(section, 0, 1)
        if not 8 <= bucket <= LARGEST_BUCKET or bucket & (bucket - 1):
            raise WireError(f"buckets of {bucket} values")
        head = numbers(section, 0, 1 if cls.parameter is None else 2)
        start, end = cls._edges(head, count)
        expect(section, end, count)
        bits, two = cls.code_bits(head[-1]), cls.scale_count == 2
        flat = scales(section, WORD * len(head), start // WORD - len(head), signed=two)
        all_scales = flat.reshape(cls.scale_count, -1)
        if (all_scales[:-1] > all_scales[1:]).any():
            raise WireError("the least value of a bucket is above its greatest")
        codes, out = usable(section[start:], np.uint8), room(count)
        no_remainder(codes, count * bits)

        def part(_: int, a: int, b: int) -> int:
            own = [scale[a // bucket : pieces(b, bucket)] for scale in all_scales]
            return cls.decode_part(codes[a * bits // 8 : pieces(b * bits, 8)], head, own, out[a:b])

        all_right(cpu.over(count, part))
        return out

    @classmethod
    def _edges(cls, head: Sequence[int], count: int) -> tuple[int, int]:
        """Where the codes begin and end, in bytes."""
        start = WORD * (len(head) + cls.scale_count * pieces(count, head[0]))
        return start, start + pieces(count * cls.code_bits(head[-1]), 8)

    @property
    def _draws(self) -> bool:
        """Return whether values are rounded by chance."""
        return True
