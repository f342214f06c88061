"""What the kernel counts on a TCP socket (``TCP_INFO``), for the identity of bytes on a link."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from dataclasses import asdict, dataclass
from typing import NamedTuple

from testbed.scenario.shape import SEGMENT_HEADER_BYTES

# Offsets in the kernel's struct tcp_info (include/uapi/linux/tcp.h).
_LAST_RECEIVED_MS = 52
_RETRANSMITS, _BYTES_ACKED, _BYTES_RECEIVED, _SEGMENTS_OUT, _LEAST_RTT = 100, 120, 128, 136, 148
_BYTES_SENT, _BYTES_RETRANSMITTED = 200, 208
_LENGTH = 216
_UNKNOWN = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class SocketCounters:
    """Totals of one socket since it was opened; retransmissions are contained in the first two."""

    bytes_sent: int
    segments_out: int
    bytes_received: int
    bytes_retransmitted: int
    retransmits: int
    least_rtt_us: int | None
    """The least round-trip time of the last five minutes (``net.ipv4.tcp_min_rtt_wlen``); None: not measured."""

    @property
    def wire_bytes(self) -> int:
        """Bytes that the sender's link counts for this socket."""
        return self.bytes_sent + SEGMENT_HEADER_BYTES * self.segments_out

    def to_json(self) -> dict[str, int | None]:
        """As sent over the control network."""
        return {**asdict(self), "wire_bytes": self.wire_bytes}


def read_counters(connected: socket.socket) -> SocketCounters:
    """Read a connected TCP socket's counters (Linux 4.19 or newer)."""
    return counters_of(_info(connected))


def counters_of(info: bytes) -> SocketCounters:
    """Read them out of a ``struct tcp_info``. Raises OSError for one of an older kernel."""
    if len(info) < _LENGTH:
        raise OSError(_short(info))
    (retransmits,) = struct.unpack_from("=I", info, _RETRANSMITS)
    (segments_out,) = struct.unpack_from("=I", info, _SEGMENTS_OUT)
    bytes_sent, bytes_retransmitted = struct.unpack_from("=QQ", info, _BYTES_SENT)
    (bytes_received,) = struct.unpack_from("=Q", info, _BYTES_RECEIVED)
    (least_rtt,) = struct.unpack_from("=I", info, _LEAST_RTT)
    return SocketCounters(
        bytes_sent,
        segments_out,
        bytes_received,
        bytes_retransmitted,
        retransmits,
        None if least_rtt == _UNKNOWN else least_rtt,
    )


def silent_s(connected: socket.socket) -> float:
    """Since when no data has come over a connected TCP socket, s, to a kernel's tick."""
    (milliseconds,) = struct.unpack_from("=I", _info(connected), _LAST_RECEIVED_MS)
    return float(milliseconds) / 1e3


class Moved(NamedTuple):
    """Bytes of a connected TCP socket: received, acknowledged by the other side, and handed over but not yet that."""

    received: int
    acknowledged: int
    waiting: int


def moved(connected: socket.socket) -> Moved:
    """Read them."""
    acknowledged, received = struct.unpack_from("=QQ", _info(connected), _BYTES_ACKED)
    (waiting,) = struct.unpack("=i", fcntl.ioctl(connected, termios.TIOCOUTQ, bytes(4)))
    return Moved(received, acknowledged, waiting)


def _info(connected: socket.socket) -> bytes:
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < _LENGTH:
        raise OSError(_short(info))
    return info


def _short(info: bytes) -> str:
    return f"the kernel's tcp_info has {len(info)} bytes, {_LENGTH} are needed"
