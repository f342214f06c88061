"""One bit each, one scale for all."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Literal

import numpy as np

from testbed.compress.base import Bytes, Floats, Room, Stateless, fresh
from testbed.compress.layout import Layout
from testbed.compress.payload import Scratch
from testbed.compress.values import section as parts
from testbed.compress.values.groups import Groups
from testbed.compress.values.section import WORD, pieces, put, usable
from testbed.errors import InputError, WireError

_HEAD = WORD


class Sign(Stateless):
    """The sign of each value, that of 0 being +, times a scale: 1 + 32/N bits each.

    ``scale="mean"``: ‖p‖₁/N (EF-signSGD, Karimireddy et al., ICML 2019). ``"one"``: 1 (signSGD, Bernstein
    et al., ICML 2018). A number: Strom's τ (Interspeech 2015), for use with the selector ``threshold``.
    Where the scale is 0 every value is read as 0.

    Section: scale, float32; one bit for each value, 1 for those below 0, lowest bit of the first byte first.
    """

    code: ClassVar[int] = 5
    keeps_zero: ClassVar[bool] = False

    def __init__(self, layout: Layout, scale: Literal["mean", "one"] | float = "mean") -> None:
        del layout
        self._scale = _given_scale(scale)
        self._scratch = Scratch()

    def section_bytes(self, count: int) -> int:
        """A bit for each, and four bytes."""
        return _HEAD + pieces(count, 8)

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass, and one over the bits."""
        from testbed.compress.kernels import loops_signs, pool

        del rng
        given, body = usable(values, np.float32), section[_HEAD:]
        whole = Groups.whole(given.size)
        if self._scale is None:
            _, sums = whole.measure(given, body)
            scale = np.float32((sums[0, 0] - sums[0, 1]) / max(given.size, 1))
        else:
            scale = self._scale
            pool.over(
                given.size,
                lambda _, a, b: loops_signs.write(given[a:b], body[a // 8 : pieces(b, 8)]),
            )
        if scale == 0.0:
            body[:] = 0
        put(section, 0, np.array([scale], np.float32))
        kept = self._scratch.array("kept", given.size, np.float32)
        whole.spread(np.array([[scale, -scale]], np.float32), body, kept)
        return kept

    @classmethod
    def read(cls, section: Bytes, count: int, room: Room = fresh) -> Floats:
        """± the scale."""
        parts.expect(section, _HEAD + pieces(count, 8), count)
        (scale,) = parts.scales(section, 0, 1)
        body, out = usable(section[_HEAD:], np.uint8), room(count)
        parts.no_remainder(body, count)
        means = np.array([[scale, -scale]], np.float32)
        counts = Groups.whole(count).spread(means, body, out)
        if scale == 0.0 and counts[0, 1]:
            raise WireError("values of scale 0 have signs")
        return out


def _given_scale(scale: object) -> np.float32 | None:
    """None for the mean."""
    if scale == "mean":
        return None
    if scale == "one":
        return np.float32(1.0)
    if isinstance(scale, int | float) and not isinstance(scale, bool):
        with np.errstate(over="ignore"):
            rounded = np.float32(scale)
        if 0.0 < rounded < np.inf:
            return rounded
    raise InputError(
        f"value coding 'sign': scale {scale!r} is neither 'mean' nor 'one' nor a positive float32"
    )
