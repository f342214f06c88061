"""The frame header: what is written is read back; anything else is refused before memory is taken."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import WireError
from testbed.exchange.frame import HEADER_BYTES, MAX_BODY, Header
from testbed.node import Kind

headers = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    sender=st.integers(0, 2**16 - 1),
    run=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**32 - 1),
    bucket=st.integers(0, 2**16 - 1),
    length=st.integers(0, MAX_BODY),
    sent_ns=st.integers(-(2**63), 2**63 - 1),
)


@given(headers)
def test_round_trip(header: Header) -> None:
    packed = header.pack()
    assert len(packed) == HEADER_BYTES == 40
    assert Header.unpack(packed) == header


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_random_bytes_are_refused_or_valid(raw: bytes) -> None:
    try:
        header = Header.unpack(raw)
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
    raw = bytearray(Header(Kind.GRADIENT, 1, 2, 3, 4, 5, 6).pack())
    offset, value = change
    raw[offset : offset + len(value)] = value
    with pytest.raises(WireError, match=said):
        Header.unpack(raw)


def test_a_short_header_is_refused() -> None:
    with pytest.raises(WireError, match="40 bytes, got 3"):
        Header.unpack(b"NRW")
