"""Natural compression: powers of two."""

from __future__ import annotations

from random import Random

import numpy as np

from testbed.compress.base import Allocator, Bytes, Floats, Options, Values, allocate
from testbed.compress.values.section import expect, usable
from testbed.errors import WireError

_HEAD = 1
_POWERS = 127
"""Consecutive powers of two that a message has; code 0 stands for 0."""
_GREATEST = 254
"""Biased exponent of 2¹²⁷."""


class Natural(Values[Options]):
    """2^e·(1 + f) becomes 2^(e+1) with probability f, else 2^e (Horváth et al., 2019).

    The expected value is x, and E|C(x)|² ≤ 9/8·x². Sign and exponent are 9 bits; here they are 8,
    for a message's powers reach from above its greatest element down by a factor of 2¹²⁶. Whatever
    is smaller (or denormal) becomes the least power with probability x/power, else 0: still
    unbiased. Above 2¹²⁷ nothing can be rounded up: the rest counts as not sent.

    Section: biased exponent of the least power less 1, uint8; sign and number of the power, uint8
    each.
    """

    name, code = "natural", 8

    def section_bytes(self, count: int) -> int:
        """One for each, and one."""
        return _HEAD + count

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass for the greatest exponent, one to write."""
        from testbed.compress.kernels import cpu, float_codecs

        seed, given = np.uint64(rng.getrandbits(64)), usable(values, np.float32)
        tops = cpu.over(given.size, lambda _, a, b: int(float_codecs.top_bits(given[a:b])))
        floor = max(0, min((max(tops) >> 23) + 1, _GREATEST) - _POWERS)
        kept, codes = self._scratch.array("kept", given.size, np.float32), section[_HEAD:]
        section[0] = floor

        def part(_: int, a: int, b: int) -> None:
            float_codecs.natural_write(given[a:b], floor, seed, a, codes[a:b], kept[a:b])

        cpu.over(given.size, part)
        return kept

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = allocate) -> Floats:
        """Exact."""
        from testbed.compress.kernels import cpu, float_codecs

        expect(section, _HEAD + count, count)
        floor = int(section[0])
        if floor > _GREATEST - _POWERS:
            raise WireError(f"powers of two from 2^{floor - 126} on go beyond float32")
        codes, out = usable(section[_HEAD:], np.uint8), room(count)
        greatest = cpu.over(
            count, lambda _, a, b: int(float_codecs.natural_read(codes[a:b], floor, out[a:b]))
        )
        if min(greatest) < 0:
            raise WireError("a value is −0")
        if floor and max(greatest) < _POWERS - 1:
            raise WireError("the powers of two begin lower than the greatest value allows")
        return out
