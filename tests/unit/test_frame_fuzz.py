"""Hostile streams of frames, and hostile datagrams: refused with a WireError, with no memory for what is only said."""

from __future__ import annotations

import socket
import tracemalloc
from contextlib import closing

import pytest
from fuzz_rig import TIMEOUT_S, changed, fuzzed
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import WireError
from testbed.node import Kind
from testbed.transport.frame import HEADER_BYTES, MAX_BODY, FrameHeader
from testbed.transport.frame_reader import FrameReader
from testbed.transport.multicast.packet import MOST_RANGES, ReceiverReport

pytestmark = pytest.mark.timeout(TIMEOUT_S)
RUN, MOST = 0x1112131415161718, 1 << 16
bodies = st.binary(max_size=200)
frames = st.builds(
    lambda kind, step, bucket, body: FrameHeader(kind, 1, RUN, step, bucket, len(body), 5).pack() + body,
    st.sampled_from(Kind), st.integers(0, 3), st.integers(0, 2), bodies,
)  # fmt: skip
streams = st.lists(frames, min_size=1, max_size=4).map(b"".join)


def taken(data: bytes, most_bytes: int = MOST) -> list[bytes]:
    """The bodies that come of a stream which ends after ``data``. Raises WireError."""
    ours, theirs = socket.socketpair()
    with closing(ours):
        ours.settimeout(10.0)
        theirs.sendall(data)
        theirs.close()
        inflow, found = FrameReader(ours, RUN, lambda ns: ns / 1e9, most_bytes), []
        while True:
            try:
                message = inflow.read()
            except EOFError:
                return found
            if message is not None:
                assert len(message.body) <= most_bytes
                found.append(bytes(message.body))


@fuzzed
@given(streams, st.data())
def test_streams_of_frames(data: bytes, more: st.DataObject) -> None:
    whole = taken(data)
    assert sum(HEADER_BYTES + len(body) for body in whole) == len(data)
    hostile = more.draw(changed(data) | st.binary(max_size=300))
    try:
        found = taken(hostile)
    except WireError as error:
        assert len(str(error)) < 300
    else:
        assert sum(HEADER_BYTES + len(body) for body in found) == len(hostile)


@pytest.mark.parametrize("length", [MOST + 1, 2**31, MAX_BODY, 2**64 - 1])
def test_no_memory_is_taken_for_what_is_only_said(length: int) -> None:
    header = bytearray(FrameHeader(Kind.GRADIENT, 1, RUN, 0, 0, 0, 5).pack())
    header[24:32] = length.to_bytes(8, "little")
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="over the limit"):
            taken(bytes(header))
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


@fuzzed
@given(
    st.builds(
        ReceiverReport, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1),
        st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), max_size=5).map(tuple),
    ),
    st.data(),
)  # fmt: skip
def test_reports_of_receivers(report: ReceiverReport, data: st.DataObject) -> None:
    raw = report.pack()
    assert ReceiverReport.unpack(raw) == report
    hostile = data.draw(changed(raw) | st.binary(max_size=2000))
    try:
        assert len(ReceiverReport.unpack(hostile).missing) <= MOST_RANGES
    except WireError:
        return
    assert ReceiverReport.unpack(hostile).pack() == hostile
