"""1-bit SGD: signs, and the means of both groups."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from testbed.compress.base import Bytes, Floats, Room, Stateless, fresh
from testbed.compress.layout import Layout
from testbed.compress.payload import Scratch
from testbed.compress.values import section as parts
from testbed.compress.values.groups import Groups, check_shapes
from testbed.compress.values.section import WORD, pieces, put, usable
from testbed.errors import InputError, WireError

_HEAD = WORD
_SHAPE = 2 * WORD
_MEANS = 2 * WORD


class OneBit(Stateless):
    """Values that are not below 0 become their mean, the others theirs (Seide et al., Interspeech 2014).

    ``per="tensor"``: over all that is sent, 1 + 64/N bits each. ``per="row"``: over each row of every
    parameter's matrix (``Part.rows``; the paper's columns: all weights into one unit), 1 + 64/columns
    bits; where only some elements are sent, over all of them. The paper finds error feedback
    indispensable: ``memory="feedback"``.

    Section: number of matrices, uint32, 0 for one group; rows and columns of each, uint32; for each group
    the mean of what is not below 0 and of what is, float32; bits as in ``sign``.
    """

    code: ClassVar[int] = 4
    keeps_zero: ClassVar[bool] = False

    def __init__(self, layout: Layout, per: Literal["tensor", "row"] = "tensor") -> None:
        if per not in ("tensor", "row"):
            raise InputError(
                f"value coding 'onebit': unknown per {per!r}", hint="Known: tensor, row"
            )
        shapes = [part.rows for part in layout if part.size] if per == "row" else []
        if max((max(shape) for shape in shapes), default=0) >= 1 << 32:
            raise InputError("value coding 'onebit': a parameter is too long for per 'row'")
        self._shapes = np.array(shapes, np.uint32).reshape(-1, 2)
        self._size = layout.size
        self._rows = Groups.of(_lengths(self._shapes)) if shapes else None
        self._scratch = Scratch()

    def section_bytes(self, count: int) -> int:
        """A bit for each value, eight bytes for each group and each matrix, and four."""
        groups, shapes = self._groups(count)
        return _HEAD + shapes.nbytes + _MEANS * groups.count + pieces(count, 8)

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass, and one over the bits."""
        del rng
        given = usable(values, np.float32)
        groups, shapes = self._groups(given.size)
        body = section[_HEAD + shapes.nbytes + _MEANS * groups.count :]
        means, _ = groups.measure(given, body)
        put(section, 0, np.array([len(shapes)], np.uint32))
        put(section, put(section, _HEAD, shapes.ravel()), means.ravel())
        kept = self._scratch.array("kept", given.size, np.float32)
        groups.spread(means, body, kept)
        return kept

    def _groups(self, count: int) -> tuple[Groups, NDArray[np.uint32]]:
        """And the shapes that go with them."""
        if self._rows is not None and count == self._size:
            return self._rows, self._shapes
        return Groups.whole(count), self._shapes[:0]

    @classmethod
    def read(cls, section: Bytes, count: int, room: Room = fresh) -> Floats:
        """Every value's mean."""
        groups, start = _read_groups(section, count)
        end = start + _MEANS * groups.count
        means = parts.scales(section, start, 2 * groups.count, signed=True).reshape(-1, 2)
        if (means[:, 0] < 0.0).any() or (means[:, 1] > 0.0).any():
            raise WireError("a mean has the wrong sign")
        body, out = usable(section[end:], np.uint8), room(count)
        parts.no_remainder(body, count)
        counts = groups.spread(means, body, out)
        if means[counts == 0].any():
            raise WireError("a group without values has a mean")
        return out


def _read_groups(section: Bytes, count: int) -> tuple[Groups, int]:
    """And where their means begin. Nothing is made of them before the section is known to be long enough."""
    (matrices,) = parts.numbers(section, 0, 1)
    end = _HEAD + _SHAPE * matrices
    if not matrices:
        parts.expect(section, end + _MEANS + pieces(count, 8), count)
        return Groups.whole(count), end
    if section.size < end:
        raise WireError(f"{matrices} matrices in a value section of {section.size} B")
    shapes = section[_HEAD:end].view("<u4").reshape(-1, 2)
    rows, columns = shapes.astype(np.uint64).T
    check_shapes(rows, columns, count)
    parts.expect(section, end + _MEANS * int(rows.sum()) + pieces(count, 8), count)
    return Groups.of(_lengths(shapes)), end


def _lengths(shapes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Columns of every row of all matrices."""
    return np.repeat(shapes[:, 1].astype(np.int64), shapes[:, 0])
