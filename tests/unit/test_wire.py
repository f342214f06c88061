"""The payload: exact bytes, every coding, its predicted length, and anything that is not one."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.compress.base import Sparse
from testbed.compress.indices import IndexCoding
from testbed.compress.wire import HEADER_BYTES, MAX_SIZE, decode, encode, payload_bytes
from testbed.errors import WireError

torch.set_num_threads(1)
SPARSE_CODINGS = [IndexCoding.BITMAP, IndexCoding.INT32, IndexCoding.RICE]

GOLDEN = {
    IndexCoding.DENSE: (
        Sparse(2, None, torch.tensor([1.0, -2.0])),
        "4e525747 01 00 00 00 0200000000000000 0200000000000000 0000803f 000000c0",
    ),
    IndexCoding.BITMAP: (
        Sparse(10, torch.tensor([1, 9]), torch.tensor([1.0, -2.0])),
        "4e525747 01 01 00 00 0a00000000000000 0200000000000000 0000803f 000000c0 0202",
    ),
    IndexCoding.INT32: (
        Sparse(100_000, torch.tensor([1, 65536]), torch.tensor([1.0, -2.0])),
        "4e525747 01 02 00 00 a086010000000000 0200000000000000 0000803f 000000c0 01000000 00000100",
    ),
    # gaps 5 2 20 0 19 19 0 27; b = 2: low bits 1 2 0 0 3 3 0 3 in two planes, high parts
    # 1 0 5 0 4 4 0 6, so that ones stand at bits 1 2 8 9 14 19 20 27
    IndexCoding.RICE: (
        Sparse(100, torch.tensor([5, 8, 29, 30, 50, 70, 71, 99]), torch.ones(8)),
        "4e525747 01 03 00 00 6400000000000000 0800000000000000"
        + " 0000803f" * 8
        + " b1 b2 06431808",
    ),
}


def same(left: Sparse, right: Sparse) -> bool:
    if left.size != right.size or (left.indices is None) != (right.indices is None):
        return False
    if left.indices is not None and right.indices is not None:
        return torch.equal(left.indices, right.indices) and torch.equal(left.values, right.values)
    return torch.equal(left.values, right.values)


@st.composite
def messages(draw: st.DrawFn) -> Sparse:
    size = draw(st.integers(1, 400))
    chosen = sorted(draw(st.sets(st.integers(0, size - 1), max_size=size)))
    values = torch.arange(1, len(chosen) + 1, dtype=torch.float32)
    return Sparse(size, torch.tensor(chosen, dtype=torch.int64), values)


@pytest.mark.parametrize("coding", IndexCoding)
def test_golden_bytes(coding: IndexCoding) -> None:
    sparse, written = GOLDEN[coding]
    assert encode(sparse, coding).hex() == written.replace(" ", "")
    assert same(decode(bytes.fromhex(written)), sparse)


@settings(max_examples=200, deadline=None)
@given(messages(), st.sampled_from(SPARSE_CODINGS))
def test_every_coding_brings_back_what_was_sent(sparse: Sparse, coding: IndexCoding) -> None:
    payload = encode(sparse, coding)
    assert len(payload) == payload_bytes(sparse.size, sparse.count, coding)
    assert same(decode(payload), sparse)


@settings(max_examples=200, deadline=None)
@given(messages())
def test_the_cheapest_coding_is_chosen(sparse: Sparse) -> None:
    payload = encode(sparse)
    assert len(payload) == payload_bytes(sparse.size, sparse.count)
    assert len(payload) == min(len(encode(sparse, coding)) for coding in IndexCoding)
    back = decode(payload)
    full, expected = torch.zeros(sparse.size), torch.zeros(sparse.size)
    full[slice(None) if back.indices is None else back.indices] = back.values
    assert sparse.indices is not None
    expected[sparse.indices] = sparse.values
    assert torch.equal(full, expected)


@pytest.mark.parametrize("density", [0.001, 0.01, 0.05, 0.1, 0.15, 0.2, 0.29, 0.5])
def test_indices_of_random_elements_are_near_their_entropy(density: float) -> None:
    """Within 10 % of N·H(k) bits and the values, the bound for independent elements."""
    size = 100_000
    count = round(density * size)
    entropy = -(density * math.log2(density) + (1 - density) * math.log2(1 - density))
    assert payload_bytes(size, count) <= 1.1 * (size * entropy / 8 + 4 * count)


def test_what_pays_when() -> None:
    def chosen(size: int, count: int) -> IndexCoding:
        values = torch.ones(count)
        return IndexCoding(encode(Sparse(size, torch.arange(count), values))[5])

    assert chosen(1000, 1000) is IndexCoding.DENSE
    assert chosen(1000, 990) is IndexCoding.DENSE
    assert chosen(1000, 500) is IndexCoding.BITMAP
    assert chosen(1000, 20) is IndexCoding.RICE
    assert chosen(1_000_000, 1) is IndexCoding.INT32


def test_nothing_at_all() -> None:
    for size in (0, 5):
        sparse = Sparse(size, torch.empty(0, dtype=torch.int64), torch.empty(0))
        assert len(encode(sparse)) == HEADER_BYTES
        assert decode(encode(sparse)).count == 0


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_at_any_alignment(buffer: Any) -> None:
    sparse, _ = GOLDEN[IndexCoding.INT32]
    payload = bytes(encode(sparse))
    assert same(decode(buffer(payload)), sparse)
    assert same(decode(memoryview(bytearray(b"x" + payload))[1:]), sparse)


def test_values_are_not_copied_from_a_writable_buffer() -> None:
    payload = encode(Sparse(2, None, torch.tensor([1.0, 2.0])))
    values = decode(payload).values
    payload[HEADER_BYTES : HEADER_BYTES + 4] = struct.pack("<f", 5.0)
    assert values.tolist() == [5.0, 2.0]
    assert decode(bytes(payload)).values.add_(1).tolist() == [6.0, 3.0]


def header(coding: int, size: int, count: int, **changed: Any) -> bytes:
    fields = {"magic": b"NRWG", "version": 1, "value": 0, "reserved": 0} | changed
    return struct.pack(
        "<4sBBBBQQ", fields["magic"], fields["version"], coding, fields["value"],
        fields["reserved"], size, count,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (b"", "at least 24 B, got 0"),
        (header(0, 0, 0)[:-1], "at least 24 B, got 23"),
        (header(0, 0, 0, magic=b"NRWS"), "not a payload"),
        (header(0, 0, 0, version=2), "payload version 2"),
        (header(9, 0, 0), "unknown index coding 9"),
        (header(0, 0, 0, value=1), "unknown value coding 1"),
        (header(0, 0, 0, reserved=1), "reserved byte 1"),
        (header(0, 2, 1) + bytes(4), "1 of 2 elements cannot be"),
        (header(2, 1, 2) + bytes(16), "2 of 1 elements cannot be"),
        (header(3, MAX_SIZE + 1, 0), "too long"),
        (header(2, 2**31 + 1, 0), "too long"),
        (header(0, MAX_SIZE, MAX_SIZE), "has 24 B instead of"),
        (header(1, MAX_SIZE, 1) + bytes(4), "has 28 B instead of"),
        (header(3, MAX_SIZE, MAX_SIZE // 3), "has 24 B instead of"),
        (header(0, 1, 1) + bytes(5), "has 29 B instead of 28"),
        (header(2, 9, 1) + bytes(4) + b"\x09\0\0\0", "indices from 9 to 9 for a vector of 9"),
        (header(2, 9, 1) + bytes(4) + b"\xff\xff\xff\xff", "indices from -1 to -1"),
        (header(2, 9, 2) + bytes(8) + b"\x03\0\0\0\x03\0\0\0", "do not ascend"),
        (header(2, 9, 3) + bytes(12) + b"\1\0\0\0\0\0\0\0\2\0\0\0", "do not ascend"),
        (header(1, 9, 1) + bytes(4) + b"\x03\x00", "2 bits are set where 1"),
        (header(1, 9, 1) + bytes(4) + b"\x00\x02", "1 bits are set where 1 of the first 9"),
        (header(3, 100, 8) + bytes(32) + b"\xb1\xb2\x06\x43\x18\x00", "7 gaps for 8 values"),
        (header(3, 100, 8) + bytes(32) + b"\xb1\xb2\x06\x43\x18\x80", "go beyond the vector"),
        (header(3, 100, 8) + bytes(32) + b"\xff\xff\x06\x43\x18\x40", "for a vector of 100"),
        (header(3, 40, 3) + bytes(12) + b"\x09\x07\x00\x00", "not followed by zeros"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(payload: bytes, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        decode(payload)


def survives(payload: bytes) -> None:
    """Either a WireError, or a message that is written in exactly these bytes and no others."""
    try:
        sparse = decode(payload)
    except WireError:
        return
    assert bytes(encode(sparse, IndexCoding(payload[5]))) == payload


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(payload: bytes) -> None:
    survives(payload)


@settings(max_examples=500, deadline=None)
@given(
    coding=st.integers(0, 3),
    size=st.one_of(st.integers(0, 200), st.integers(0, 2**64 - 1)),
    count=st.one_of(st.integers(0, 50), st.integers(0, 2**64 - 1)),
    body=st.binary(max_size=300),
)
def test_random_bytes_after_a_header(coding: int, size: int, count: int, body: bytes) -> None:
    survives(header(coding, size, count) + body)
    if size <= MAX_SIZE and count <= size and coding:
        wanted = payload_bytes(size, count, IndexCoding(coding)) - HEADER_BYTES
        if wanted <= len(body):
            survives(header(coding, size, count) + body[:wanted])


@settings(max_examples=200, deadline=None)
@given(messages(), st.sampled_from(SPARSE_CODINGS), st.data())
def test_flipped_bits_and_truncations(
    sparse: Sparse, coding: IndexCoding, data: st.DataObject
) -> None:
    payload = encode(sparse, coding)
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    flipped = bytearray(payload)
    flipped[bit // 8] ^= 1 << bit % 8
    survives(bytes(flipped))
    with pytest.raises(WireError):
        decode(payload[: data.draw(st.integers(0, len(payload) - 1))])


@pytest.mark.parametrize(
    ("sparse", "sentence"),
    [
        (Sparse(5, torch.tensor([3, 1]), torch.ones(2)), "do not ascend"),
        (Sparse(5, torch.tensor([1, 5]), torch.ones(2)), "for a vector of 5"),
        (Sparse(5, torch.tensor([1]), torch.ones(2)), "1 indices for 2 values"),
        (Sparse(5, None, torch.ones(2)), "2 of 5 elements have no indices"),
        (Sparse(2, None, torch.ones(2, dtype=torch.float64)), "float32 only"),
        (Sparse(MAX_SIZE + 1, torch.tensor([1]), torch.ones(1)), "too long"),
    ],
)
def test_what_cannot_be_sent(sparse: Sparse, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        encode(sparse)


def test_far_apart_in_a_very_long_vector() -> None:
    indices = torch.tensor([0, 2**31, MAX_SIZE - 1])
    sparse = Sparse(MAX_SIZE, indices, torch.ones(3))
    payload = encode(sparse)
    assert IndexCoding(payload[5]) is IndexCoding.RICE
    assert same(decode(payload), sparse)
    with pytest.raises(WireError, match="too long"):
        encode(sparse, IndexCoding.INT32)
