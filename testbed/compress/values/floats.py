"""Values as floats: IEEE 754 binary32, binary16, and bfloat16, which keeps float32's range and 8
bits of precision.
"""

from __future__ import annotations

from random import Random

import numpy as np

from testbed.compress.base import Allocator, Bytes, Floats, Options, Values, allocate
from testbed.compress.values.section import expect, usable
from testbed.errors import WireError


class Fp32(Values[Options]):
    """32 bits each, little-endian. Nothing is lost."""

    name, code = "fp32", 0

    def section_bytes(self, count: int) -> int:
        """Four for each."""
        return 4 * count

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """A copy into ``section``."""
        del rng
        section.view("<f4")[:] = values
        return values

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = allocate) -> Floats:
        """A view of ``section`` where it is writable and aligned, else a copy."""
        if section.size != 4 * count:
            raise WireError(f"{section.size} B for {count} float32 values")
        values = section.view("<f4")
        if values.flags.writeable and values.flags.aligned:
            return values.astype(np.float32, copy=False)
        out = room(count)
        out[:] = values
        return out


class _Half(Values[Options]):
    """Rounded to the nearest, ties to even; never to infinity. Loops are found by the name."""

    def section_bytes(self, count: int) -> int:
        """Two for each."""
        return 2 * count

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass."""
        from testbed.compress.kernels import cpu, float_codecs

        del rng
        loop = getattr(float_codecs, f"{self.name}_write")
        given, target = usable(values, np.float32), section.view("<u2")
        halves, kept = (
            usable(target, np.uint16),
            self._scratch.array("kept", given.size, np.float32),
        )
        cpu.over(given.size, lambda _, a, b: loop(given[a:b], halves[a:b], kept[a:b]))
        if halves is not target:  # the section lies at an odd address
            target[:] = halves
        return kept

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = allocate) -> Floats:
        """Exact."""
        from testbed.compress.kernels import cpu, float_codecs

        loop = getattr(float_codecs, f"{cls.name}_read")
        expect(section, 2 * count, count)
        halves, out = usable(section.view("<u2"), np.uint16), room(count)
        if not all(cpu.over(count, lambda _, a, b: loop(halves[a:b], out[a:b]))):
            raise WireError("a value is not finite")
        return out


class Fp16(_Half):
    """IEEE 754 binary16: steps of 2⁻²⁴ near 0, a relative error of 2⁻¹¹ from 2⁻¹⁴ on.

    What is beyond ±65504 is sent as that: the rest counts as not sent, and error feedback keeps it.
    """

    name, code = "fp16", 1


class Bf16(_Half):
    """bfloat16: a relative error of 2⁻⁸ or less.

    What is beyond its greatest finite number, 3.3895e38, is sent as that: the rest counts as not
    sent.
    """

    name, code = "bf16", 2
