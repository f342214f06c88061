"""The frame: a fixed little-endian header of 40 bytes, then the body.

offset size field
0      4    magic "NRWS"
4      1    version (1)
5      1    kind (``Kind``)
6      2    sender (peer number)
8      8    run id
16     4    step
20     2    bucket
22     2    reserved, 0
24     8    body length in bytes, at most ``MAX_BODY``
32     8    time of sending, nanoseconds of the monotonic clock of the session's host
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from testbed.errors import WireError
from testbed.node import Kind, Message

MAGIC, VERSION = b"NRWS", 1
_LAYOUT = struct.Struct("<4sBBHQIHHQq")
HEADER_BYTES = _LAYOUT.size
MAX_BODY = 4 << 30
_KINDS = {int(kind): kind for kind in Kind}


def _packed(
    kind: Kind, sender: int, run: int, step: int, bucket: int, length: int, sent_ns: int
) -> bytes:
    return _LAYOUT.pack(MAGIC, VERSION, kind, sender, run, step, bucket, 0, length, sent_ns)


class FrameHeader(NamedTuple):
    """A frame's header; ``sent_ns`` is on the monotonic clock of the session's host."""

    kind: Kind
    sender: int
    run: int
    step: int
    bucket: int
    length: int
    sent_ns: int

    def pack(self) -> bytes:
        """The 40 bytes on the wire."""
        return _packed(*self)

    @classmethod
    def unpack(cls, raw: bytes | bytearray | memoryview, most_bytes: int = MAX_BODY) -> FrameHeader:
        """Read 40 bytes. Raises WireError naming what is wrong; nothing is allocated from the
        length.

        ``most_bytes``: of a body, where less than ``MAX_BODY`` can have been sent.
        """
        if len(raw) != HEADER_BYTES:
            raise WireError(f"a frame header has {HEADER_BYTES} bytes, got {len(raw)}")
        magic, version, number, sender, run, step, bucket, _, length, sent_ns = _LAYOUT.unpack(raw)
        if magic != MAGIC:
            raise WireError(f"not a frame: it begins with {magic!r} instead of {MAGIC!r}")
        if version != VERSION:
            raise WireError(f"frame version {version}, this side speaks {VERSION}")
        if (kind := _KINDS.get(number)) is None:
            raise WireError(f"unknown frame kind {number}")
        if length > most_bytes or length > MAX_BODY:
            limit = min(most_bytes, MAX_BODY)
            raise WireError(f"frame body of {length} B is over the limit of {limit} B")
        # half of the time that ``cls(...)`` takes, for each frame
        return tuple.__new__(cls, (kind, sender, run, step, bucket, length, sent_ns))


def frame_bytes(message: Message) -> int:
    """Bytes that ``message`` takes as a frame, header included."""
    body = message.body
    return HEADER_BYTES + (len(body) if isinstance(body, bytes) else memoryview(body).nbytes)


Frame = tuple[bytes, memoryview]
"""Header and body as they go out."""


def framed(message: Message, run: int, sent_ns: int) -> Frame:
    """``message`` as a frame of the run."""
    body = memoryview(message.body).cast("B")
    about = message.kind, message.sender, run, message.step, message.bucket
    return _packed(*about, len(body), sent_ns), body
