"""Payloads that are refused, and why; what cannot be sent."""

from __future__ import annotations

import struct
from functools import partial
from typing import Any

import pytest
import torch
from wire_rig import SOME, SPARSE_CODINGS, allocated

from testbed.compress.base import Sparse
from testbed.compress.indices import IndexCoding
from testbed.compress.payload import MAX_SIZE, decode, encode
from testbed.errors import WireError


def header(coding: int, size: int, count: int, length: int | None = None, **other: Any) -> bytes:
    fields = {"magic": b"NRWG", "version": 2, "value": 0, "reserved": 0} | other
    return struct.pack(
        "<4sBBBBQQQ", fields["magic"], fields["version"], coding, fields["value"], fields["reserved"],
        size, count, 4 * count if length is None else length,
    )  # fmt: skip


ABOUT = [
    (b"", 0, "at least 32 B, got 0"),
    (header(0, 0, 0)[:-1], 0, "at least 32 B, got 31"),
    (header(0, 0, 0, magic=b"NRWS"), 0, "not a payload"),
    (header(0, 0, 0, version=1), 0, "payload version 1, this side speaks 2"),
    (header(9, 0, 0), 0, "unknown index coding 9"),
    (header(0, 0, 0, value=253), 0, "unknown value coding 253"),
    (header(0, 0, 0, reserved=1), 0, "reserved byte is 1"),
    (header(0, 1, 1) + bytes(4), 2, "for 1 elements where 2"),
    (header(0, 2, 1) + bytes(4), 2, "1 of 2 elements cannot be"),
    (header(2, 1, 2) + bytes(16), 1, "2 of 1 elements cannot be"),
    (header(4, 1, 2) + bytes(16), 1, "2 of 1 elements cannot be"),
    (header(3, MAX_SIZE + 1, 0), MAX_SIZE + 1, "too long"),
    (header(2, 2**31 + 1, 0), 2**31 + 1, "too long"),
    (header(0, MAX_SIZE, MAX_SIZE), MAX_SIZE, "has 32 B instead of"),
    (header(1, MAX_SIZE, 1) + bytes(4), MAX_SIZE, "has 36 B instead of"),
    (header(3, MAX_SIZE, MAX_SIZE // 3), MAX_SIZE, "has 32 B instead of"),
    (header(4, MAX_SIZE, MAX_SIZE, 0) + bytes(8), MAX_SIZE, "0 B for 1099511627776 float32"),
    (header(0, MAX_SIZE, MAX_SIZE, 0), MAX_SIZE, "0 B for 1099511627776 float32"),
    (header(0, 1, 1, 2**64 - 1) + bytes(4), 1, "has 36 B instead of"),
    (header(0, 1, 1, 5) + bytes(5), 1, "5 B for 1 float32 values"),
    (header(0, 1, 1) + bytes(5), 1, "has 37 B instead of 36"),
    (header(2, 9, 1) + bytes(4) + b"\x09\0\0\0", 9, "index 9 in a vector of 9"),
    (header(2, 9, 1) + bytes(4) + b"\xff\xff\xff\xff", 9, "index -1 in a vector of 9"),
    (header(2, 9, 2) + bytes(8) + b"\3\0\0\0\3\0\0\0", 9, "do not ascend: 3 follows 3"),
    (header(2, 9, 3) + bytes(12) + b"\1\0\0\0\0\0\0\0\2\0\0\0", 9, "do not ascend: 0 follows 1"),
    (header(1, 9, 1) + bytes(4) + b"\x03\x00", 9, "2 bits are set where 1 should be"),
    (header(1, 9, 1) + bytes(4) + b"\x00\x02", 9, "unused bits of a last byte are not zero"),
    (header(3, 100, 8) + bytes(32) + b"\xfd\xe6\x84\x63\x62\x00", 100, "7 high parts for 8 indices"),
    (header(3, 100, 8) + bytes(32) + b"\xfd\xe6\x84\x63\x62\x08", 100, "not zero"),
    (header(3, 100, 8) + bytes(32) + b"\xfd\xe6\xa4\x63\x62\x04", 100, "beyond a vector of 100"),
    (header(3, 100, 8) + bytes(32) + b"\xff\xe6\x84\x63\x62\x04", 100, None),
    (header(3, 100, 8) + bytes(32) + b"\xc7\xe6\x84\x63\x62\x04", 100, "do not ascend"),
    (header(3, 40, 3) + bytes(12) + b"\x00\x08\x07", 40, "not zero"),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "size", "sentence"), ABOUT)
def test_what_is_wrong_is_said(payload: bytes, size: int, sentence: str | None) -> None:
    if sentence is None:  # next to one that is wrong
        assert encode(decode(payload, size), coding=IndexCoding(payload[5])).payload == payload
        return
    with pytest.raises(WireError, match=sentence):
        decode(payload, size)


@pytest.mark.parametrize(
    ("sparse", "sentence"),
    [
        (Sparse(5, torch.tensor([3, 1]), torch.ones(2)), "do not ascend: 1 follows 3"),
        (Sparse(5, torch.tensor([1, 5]), torch.ones(2)), "index 5 in a vector of 5"),
        (Sparse(5, torch.tensor([4, 5]), torch.ones(2)), "index 5 in a vector of 5"),
        (Sparse(5, torch.tensor([-1, 4]), torch.ones(2)), "index -1 in a vector of 5"),
        (Sparse(5, torch.tensor([1]), torch.ones(2)), r"indices torch.int64 \(1,\) for 2 values"),
        (Sparse(5, torch.tensor([1.0]), torch.ones(1)), r"indices torch.float32 \(1,\)"),
        (Sparse(5, None, torch.ones(2)), "2 of 5 elements have no indices"),
        (Sparse(2, None, torch.ones(2, dtype=torch.float64)), "float32 only"),
        (Sparse(MAX_SIZE + 1, torch.tensor([1]), torch.ones(1)), "too long"),
    ],
)
def test_what_cannot_be_sent(sparse: Sparse, sentence: str) -> None:
    for coding in (None, *SPARSE_CODINGS):
        with pytest.raises(WireError, match=sentence):
            encode(sparse, coding=coding)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_has_64_bits(seed: int) -> None:
    with pytest.raises(WireError, match="outside 0 to"):
        encode(Sparse(100, torch.arange(9), torch.ones(9), seed), coding=IndexCoding.SEED)
    with pytest.raises(WireError, match="cannot be sent as seed"):
        encode(Sparse(100, torch.arange(9), torch.ones(9)), coding=IndexCoding.SEED)


# -- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", IndexCoding)
def test_a_short_message_that_claims_2_to_40_elements(coding: IndexCoding) -> None:
    """Refused before anything is allocated, even by a receiver that waits for so many."""
    for count in (1, MAX_SIZE // 2, MAX_SIZE):
        for length in (0, 8, 4 * count):
            payload = header(coding, MAX_SIZE, count, length) + bytes(8)
            for size in (1000, MAX_SIZE):
                assert allocated(partial(refused, payload, size)) < SOME


def refused(payload: bytes, size: int) -> None:
    with pytest.raises(WireError):
        decode(payload, size)


def test_what_a_reader_may_allocate() -> None:
    """A bit for each index is the densest coding: 8 B come of it, and 4 of each value. n bounds m."""
    size = 80_000
    sparse = Sparse(size, torch.arange(size), torch.ones(size))
    for coding in SPARSE_CODINGS:
        payload = bytes(encode(sparse, coding=coding).payload)
        held = allocated(partial(decode, payload, size))
        assert held < 12.5 * size + 2 * len(payload)
