"""Values as floats: IEEE 754 binary32, binary16, and bfloat16, which keeps float32's range and 8
bits of precision.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

import numpy as np

from testbed.compress.base import Allocator, BufferPool, Bytes, Floats, Stateless, fresh
from testbed.compress.layout import Layout
from testbed.compress.values.section import expect, usable
from testbed.errors import WireError


class Fp32(Stateless):
    """32 bits each, little-endian. Nothing is lost."""

    code: ClassVar[int] = 0
    keeps_zero: ClassVar[bool] = True

    def __init__(self, layout: Layout) -> None:
        del layout

    def section_bytes(self, count: int) -> int:
        """Four for each."""
        return 4 * count

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """A copy into ``section``."""
        del rng
        section.view("<f4")[:] = values
        return values

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = fresh) -> Floats:
        """A view of ``section`` where it is writable and aligned, else a copy."""
        if section.size != 4 * count:
            raise WireError(f"{section.size} B for {count} float32 values")
        values = section.view("<f4")
        if values.flags.writeable and values.flags.aligned:
            return values.astype(np.float32, copy=False)
        out = room(count)
        out[:] = values
        return out


class _Half(Stateless):
    """Rounded to the nearest, ties to even; never to infinity."""

    keeps_zero: ClassVar[bool] = True

    def __init__(self, layout: Layout) -> None:
        del layout
        self._scratch = BufferPool()

    def section_bytes(self, count: int) -> int:
        """Two for each."""
        return 2 * count

    def _written(self, values: Floats, section: Bytes, loop: Callable[..., Any]) -> Floats:
        from testbed.compress.kernels import cpu

        given, held = usable(values, np.float32), section.view("<u2")
        halves, kept = usable(held, np.uint16), self._scratch.array("kept", given.size, np.float32)
        cpu.over(given.size, lambda _, a, b: loop(given[a:b], halves[a:b], kept[a:b]))
        if halves is not held:  # the section lies at an odd address
            held[:] = halves
        return kept

    @staticmethod
    def _read(section: Bytes, count: int, room: Allocator, loop: Callable[..., Any]) -> Floats:
        from testbed.compress.kernels import cpu as pool

        expect(section, 2 * count, count)
        halves, out = usable(section.view("<u2"), np.uint16), room(count)
        if not all(pool.over(count, lambda _, a, b: loop(halves[a:b], out[a:b]))):
            raise WireError("a value is not finite")
        return out


class Fp16(_Half):
    """IEEE 754 binary16: steps of 2⁻²⁴ near 0, a relative error of 2⁻¹¹ from 2⁻¹⁴ on.

    What is beyond ±65504 is sent as that: the rest counts as not sent, and error feedback keeps it.
    """

    code: ClassVar[int] = 1

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass."""
        from testbed.compress.kernels import float_codecs

        del rng
        return self._written(values, section, float_codecs.fp16_write)

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = fresh) -> Floats:
        """Exact."""
        from testbed.compress.kernels import float_codecs as loops_half

        return cls._read(section, count, room, loops_half.fp16_read)


class Bf16(_Half):
    """bfloat16: a relative error of 2⁻⁸ or less.

    What is beyond its greatest finite number, 3.3895e38, is sent as that: the rest counts as not
    sent.
    """

    code: ClassVar[int] = 2

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass."""
        from testbed.compress.kernels import float_codecs as loops_half

        del rng
        return self._written(values, section, loops_half.bf16_write)

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = fresh) -> Floats:
        """Exact."""
        from testbed.compress.kernels import float_codecs as loops_half

        return cls._read(section, count, room, loops_half.bf16_read)
