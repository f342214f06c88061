"""Threshold quantisation with several fixed thresholds."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field

from testbed.compress.base import (
    Allocator,
    Bytes,
    Floats,
    Options,
    PositiveFloat32,
    Values,
    allocate,
)
from testbed.compress.layout import Layout
from testbed.compress.values.section import (
    WORD,
    expect,
    no_remainder,
    numbers,
    pieces,
    put,
    scales,
    usable,
)
from testbed.errors import WireError

_MOST = 127


def _ascending(levels: list[float]) -> list[float]:
    if any(np.float32(a) >= np.float32(b) for a, b in pairwise(levels)):
        raise ValueError("they do not ascend")
    return levels


class ThresholdsOptions(Options):
    """Options of ``thresholds``."""

    levels: Annotated[
        list[PositiveFloat32],
        Field(min_length=1, max_length=_MOST),
        AfterValidator(_ascending),
    ] = Field([0.001, 0.002, 0.004], description="Thresholds, in ascending order.")


class Thresholds(Values[ThresholdsOptions]):
    """x becomes ± the greatest threshold that |x| reaches, 0 below the least (Seide et al. 2014 and
    Strom 2015 with more thresholds than one).

    ⌈log₂(2s + 1)⌉ bits for s thresholds. Section: s, uint32; thresholds, float32; codes s ± number
    of so many bits (``kernels.bit_packing``).
    """

    name, model, code = "thresholds", ThresholdsOptions, 12

    def __init__(self, layout: Layout, **options: Any) -> None:
        super().__init__(layout, **options)
        self._levels = np.array(self.options.levels, np.float32)

    def section_bytes(self, count: int) -> int:
        """Thresholds and codes."""
        return _edges(self._levels.size, count)[1]

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass; nothing is drawn."""
        from testbed.compress.kernels import cpu, float_codecs

        del rng
        given, levels = usable(values, np.float32), self._levels
        kept, bits = self._scratch.array("kept", given.size, np.float32), _bits(levels.size)
        put(section, put(section, 0, np.array([levels.size], np.uint32)), levels)
        codes = section[_edges(levels.size, given.size)[0] :]

        def part(_: int, a: int, b: int) -> None:
            body = codes[a * bits // 8 : pieces(b * bits, 8)]
            float_codecs.write_levels(given[a:b], levels, bits, body, kept[a:b])

        cpu.over(given.size, part)
        return kept

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = allocate) -> Floats:
        """One pass."""
        from testbed.compress.kernels import cpu, float_codecs

        (size,) = numbers(section, 0, 1)
        if not 1 <= size <= _MOST:
            raise WireError(f"{size} thresholds")
        start, end = _edges(size, count)
        expect(section, end, count)
        levels, bits = scales(section, WORD, size), _bits(size)
        if levels[0] == 0 or (levels[1:] <= levels[:-1]).any():
            raise WireError("thresholds do not ascend from above 0")
        codes, out = usable(section[start:], np.uint8), room(count)
        no_remainder(codes, count * bits)

        def part(_: int, a: int, b: int) -> bool:
            body = codes[a * bits // 8 : pieces(b * bits, 8)]
            return bool(float_codecs.read_levels(body, levels, bits, out[a:b]))

        if not all(cpu.over(count, part)):
            raise WireError("a code is of no threshold")
        return out


def _bits(size: int) -> int:
    """Of a code for 0 and ± each of ``size`` thresholds."""
    return (2 * size).bit_length()


def _edges(size: int, count: int) -> tuple[int, int]:
    """Where the codes begin and end, in bytes."""
    start = WORD * (1 + size)
    return start, start + pieces(count * _bits(size), 8)
