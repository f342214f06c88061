"""The frame header: what is written is read back; anything else is refused before memory is taken."""

import mmap
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
from fuzz_rig import fuzzed
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import WireError
from testbed.node import Kind, Message
from testbed.transport.frame import HEADER_BYTES, MAX_BODY, FrameHeader, framed
from testbed.transport.frame_reader import FrameReader

headers = st.builds(
    FrameHeader,
    kind=st.sampled_from(Kind),
    sender=st.integers(0, 2**16 - 1),
    run=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**32 - 1),
    bucket=st.integers(0, 2**16 - 1),
    length=st.integers(0, MAX_BODY),
    sent_ns=st.integers(-(2**63), 2**63 - 1),
)


@fuzzed
@given(headers)
def test_round_trip(header: FrameHeader) -> None:
    packed = header.pack()
    assert len(packed) == HEADER_BYTES == 40
    assert FrameHeader.unpack(packed) == header


@fuzzed
@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_random_bytes_are_refused_or_valid(raw: bytes) -> None:
    try:
        header = FrameHeader.unpack(raw)
    except WireError:
        return
    assert raw[:4] == b"NRWS" and header.length <= MAX_BODY


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((0, b"HTTP"), "not a frame"),
        ((4, b"\x09"), "version 9"),
        ((5, b"\xee"), "kind 238"),
        ((24, struct.pack("<Q", MAX_BODY + 1)), "over the limit"),
    ],
)
def test_each_field_is_checked(change: tuple[int, bytes], said: str) -> None:
    raw = bytearray(FrameHeader(Kind.GRADIENT, 1, 2, 3, 4, 5, 6).pack())
    offset, value = change
    raw[offset : offset + len(value)] = value
    with pytest.raises(WireError, match=said):
        FrameHeader.unpack(raw)


def test_the_bytes_are_those_of_the_documented_layout() -> None:
    """Every field at its offset, little-endian, with the reserved bytes 0: see the module's table."""
    raw = FrameHeader(
        Kind.GRADIENT, 0x0102, 0x1112131415161718, 0x21222324, 0x3132, 0x41, 0x51
    ).pack()
    assert raw[:6] == b"NRWS" + bytes([1, int(Kind.GRADIENT)])
    assert raw[6:8] == b"\x02\x01"
    assert raw[8:16] == bytes.fromhex("1817161514131211")
    assert raw[16:20] == bytes.fromhex("24232221")
    assert raw[20:24] == b"\x32\x31\x00\x00"
    assert raw[24:32] == b"\x41" + bytes(7)
    assert raw[32:] == b"\x51" + bytes(7)


def test_a_body_may_be_as_long_as_the_limit_and_not_a_byte_longer() -> None:
    """4 GiB without a limit of the reader's; the lower of both with one, which the error names."""
    assert MAX_BODY == 4 * 1024**3
    longest = FrameHeader(Kind.GRADIENT, 1, 2, 3, 4, MAX_BODY, 6).pack()
    assert (
        FrameHeader.unpack(longest).length
        == FrameHeader.unpack(longest, 2 * MAX_BODY).length
        == MAX_BODY
    )
    assert (
        FrameHeader.unpack(FrameHeader(Kind.GRADIENT, 1, 2, 3, 4, 100, 6).pack(), 100).length == 100
    )
    for length, most, limit in ((101, 100, 100), (MAX_BODY + 1, 2 * MAX_BODY, MAX_BODY)):
        raw = FrameHeader(Kind.GRADIENT, 1, 2, 3, 4, length, 6).pack()
        with pytest.raises(WireError, match=f"of {length} B is over the limit of {limit} B$"):
            FrameHeader.unpack(raw, most)


def test_a_short_header_is_refused() -> None:
    with pytest.raises(WireError, match="40 bytes, got 3"):
        FrameHeader.unpack(b"NRW")


def test_the_moment_of_sending_is_told_by_the_clock_of_the_session() -> None:
    """The sender's host is 1000 s ahead of it, the receiver's 77 s: t0 was at 5 s."""
    message = Message(Kind.GRADIENT, 1, 0, 1, b"body")

    def clock(ns: int) -> float:
        return ns / 1e9 - 77 - 5

    sender, receiver = socket.socketpair()
    with sender, receiver:
        sender.sendmsg(framed(message, run=3, sent_ns=1_006_000_000_000 - 1_000_000_000_000))
        reader = FrameReader(receiver, 3, clock, 100, ahead_ns=77_000_000_000)
        before_ns = time.monotonic_ns()
        while (arrived := reader.read()) is None:
            pass
    assert (arrived.sent_s, bytes(arrived.body)) == (1.0, b"body")
    assert clock(before_ns) <= arrived.arrived_s <= clock(time.monotonic_ns())


def _resident_bytes() -> int:
    """Memory of this process that has contents."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("reuses", [True, False])
def test_long_bodies_take_memory_as_they_come(reuses: bool) -> None:
    """Memory that is filled with zeros first holds up all other threads of a server, and with them
    its link."""
    size = 256 << 20
    header = FrameHeader(Kind.GRADIENT, 2, 3, 1, 0, size, 0).pack()
    sender, receiver = socket.socketpair()
    with sender, receiver:
        reader = FrameReader(receiver, 3, float, size)
        reader.reuses = reuses
        before = _resident_bytes()
        sender.sendall(header)
        assert reader.read() is None
        assert _resident_bytes() - before < size // 8


@pytest.mark.parametrize("reuses", [True, False])
def test_bodies_of_all_lengths_arrive_whole(reuses: bool) -> None:
    """Short and long ones have memory of different kinds; two messages of a bucket are kept."""
    lengths = [10, 3 << 20, 100, (1 << 20) - 1, 1 << 20, 5 << 20, 1]
    sender, receiver = socket.socketpair()
    with sender, receiver:
        reader = FrameReader(receiver, 3, float, 5 << 20)
        reader.reuses = reuses
        kept: list[tuple[memoryview, bytes]] = []
        for step, length in enumerate(lengths):
            sent = bytes([65 + step]) * length
            frame = framed(Message(Kind.GRADIENT, step, 0, 1, sent), 3, 0)
            thread = threading.Thread(target=lambda frame=frame: list(map(sender.sendall, frame)))
            thread.start()
            while (arrived := reader.read()) is None:
                pass
            thread.join()
            kept.append((arrived.body, sent))
            assert all(body == whole for body, whole in kept[-2:])
        if not reuses:
            assert all(body == whole for body, whole in kept)
