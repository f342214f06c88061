"""Values as they are: IEEE 754 binary32."""

from __future__ import annotations

from random import Random
from typing import ClassVar

import numpy as np

from testbed.compress.base import Bytes, Floats, Room, Stateless, fresh
from testbed.compress.layout import Layout
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
    def read(cls, section: Bytes, count: int, room: Room = fresh) -> Floats:
        """A view of ``section`` where it is writable and aligned, else a copy."""
        if section.size != 4 * count:
            raise WireError(f"{section.size} B for {count} float32 values")
        values = section.view("<f4")
        if values.flags.writeable and values.flags.aligned:
            return values.astype(np.float32, copy=False)
        out = room(count)
        out[:] = values
        return out
