"""What every coded packet begins with, little-endian, before the int32 elements of its sum.

offset size field
0      1    phase
1      1    redundancy r of the scheme
2      2    pieces that the sum is made of, p
4      4    number of the packet, among its sender's
8      8    elements that saturated in the sender's blocks of the step
16     8    T_calc of the sender's last step, seconds, IEEE 754 double; NaN: none yet
24     8    T_comm of it
32     4·p  CRC-32 of the vector that each piece is of, in the order of the packet's table
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import nan

from testbed.errors import WireError
from testbed.node import Buffer

_LAYOUT = struct.Struct("<BBHIQdd")
FIXED_BYTES = _LAYOUT.size
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class Note:
    """What a node tells of itself: saturations of this step, seconds of the last one."""

    saturated: int = 0
    t_calc_s: float = nan
    t_comm_s: float = nan


@dataclass(frozen=True, slots=True)
class Header:
    """See the table above."""

    phase: int
    r: int
    number: int
    note: Note
    crcs: tuple[int, ...]

    def pack(self) -> bytes:
        """As on the wire: a multiple of four bytes."""
        note, many = self.note, len(self.crcs)
        fixed = _LAYOUT.pack(
            self.phase, self.r, many, self.number, note.saturated, note.t_calc_s, note.t_comm_s
        )
        return fixed + struct.pack(f"<{many}I", *self.crcs)

    @classmethod
    def unpack(cls, body: Buffer) -> tuple[Header, memoryview]:
        """The header and what follows it. Raises WireError for a body that is too short for one."""
        view = memoryview(body).cast("B")
        if len(view) < FIXED_BYTES:
            raise WireError(
                f"{len(view)} B are too few for the {FIXED_BYTES} B that a coded packet begins with"
            )
        phase, r, many, number, *note = _LAYOUT.unpack(view[:FIXED_BYTES])
        end = header_bytes(many)
        if len(view) < end:
            raise WireError(f"{len(view)} B are too few for a coded packet of {many} pieces")
        crcs = struct.unpack(f"<{many}I", view[FIXED_BYTES:end])
        return cls(phase, r, number, Note(*note), crcs), view[end:]


def header_bytes(pieces: int) -> int:
    """Of a packet of so many pieces."""
    return FIXED_BYTES + _CRC_BYTES * pieces
