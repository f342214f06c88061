"""The payload: exact bytes, every coding, its predicted length, and anything that is not one."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.compress import seeded
from testbed.compress.base import Bytes, Floats, Sparse, Stateless, codings
from testbed.compress.codes import coding_of
from testbed.compress.header import Header
from testbed.compress.indices import IndexCoding
from testbed.compress.layout import Layout
from testbed.compress.payload import PayloadBuffer, Scratch
from testbed.compress.values.fp32 import Fp32
from testbed.compress.wire import HEADER_BYTES, MAX_SIZE, decode, encode, payload_bytes
from testbed.errors import WireError

torch.set_num_threads(1)
SPARSE_CODINGS = [IndexCoding.BITMAP, IndexCoding.INT32, IndexCoding.ELIAS_FANO]
SEED = 0x0123456789ABCDEF


def chosen_by(seed: int, size: int, count: int) -> Sparse:
    """Elements that a seed chooses, with values that tell them apart."""
    indices = torch.from_numpy(seeded.indices(size, count, seed))
    return Sparse(size, indices, torch.arange(1.0, count + 1), seed)


GOLDEN = {
    IndexCoding.DENSE: (
        Sparse(2, None, torch.tensor([1.0, -2.0])),
        "4e525747 02 00 00 00 0200000000000000 0200000000000000 0800000000000000 0000803f 000000c0",
    ),
    IndexCoding.BITMAP: (
        Sparse(10, torch.tensor([1, 9]), torch.tensor([1.0, -2.0])),
        "4e525747 02 01 00 00 0a00000000000000 0200000000000000 0800000000000000 0000803f 000000c0 0202",
    ),
    IndexCoding.INT32: (
        Sparse(100_000, torch.tensor([1, 65536]), torch.tensor([1.0, -2.0])),
        "4e525747 02 02 00 00 a086010000000000 0200000000000000 0800000000000000 0000803f 000000c0"
        " 01000000 00000100",
    ),
    # not sent before each: 5 7 27 27 46 65 65 92; b = 3: low bits 5 7 3 3 6 1 1 4, high parts
    # 0 0 3 3 5 8 8 11, so that ones stand at bits 0 1 5 6 9 13 14 18
    IndexCoding.ELIAS_FANO: (
        Sparse(100, torch.tensor([5, 8, 29, 30, 50, 70, 71, 99]), torch.ones(8)),
        "4e525747 02 03 00 00 6400000000000000 0800000000000000 2000000000000000"
        + " 0000803f" * 8
        + " fde684 636204",
    ),
    IndexCoding.SEED: (
        chosen_by(SEED, 1000, 2),
        "4e525747 02 04 00 00 e803000000000000 0200000000000000 0800000000000000 0000803f 00000040"
        " efcdab8967452301",
    ),
}  # fmt: skip


def same(left: Sparse, right: Sparse) -> bool:
    if left.size != right.size or left.seed != right.seed:
        return False
    if left.indices is not None and right.indices is not None:
        return torch.equal(left.indices, right.indices) and torch.equal(left.values, right.values)
    return left.indices is right.indices and torch.equal(left.values, right.values)


def whole(sparse: Sparse) -> torch.Tensor:
    """The vector that a message stands for."""
    full = torch.zeros(sparse.size)
    full[slice(None) if sparse.indices is None else sparse.indices] = sparse.values
    return full


@st.composite
def messages(draw: st.DrawFn) -> Sparse:
    size = draw(st.integers(1, 400))
    chosen = sorted(draw(st.sets(st.integers(0, size - 1), max_size=size)))
    values = torch.arange(1, len(chosen) + 1, dtype=torch.float32)
    return Sparse(size, torch.tensor(chosen, dtype=torch.int64), values)


@pytest.mark.parametrize("coding", IndexCoding)
def test_golden_bytes(coding: IndexCoding) -> None:
    sparse, written = GOLDEN[coding]
    assert encode(sparse, coding=coding).payload.hex() == written.replace(" ", "")
    assert same(decode(bytes.fromhex(written), sparse.size), sparse)


@settings(max_examples=200, deadline=None)
@given(messages(), st.sampled_from(SPARSE_CODINGS))
def test_every_coding_brings_back_what_was_sent(sparse: Sparse, coding: IndexCoding) -> None:
    encoded = encode(sparse, coding=coding)
    assert torch.equal(encoded.values, sparse.values)
    assert same(decode(encoded.payload, sparse.size), sparse)


@settings(max_examples=200, deadline=None)
@given(messages())
def test_the_shortest_coding_is_chosen(sparse: Sparse) -> None:
    payload = encode(sparse).payload
    others = [IndexCoding.DENSE, *SPARSE_CODINGS]
    assert len(payload) == payload_bytes(sparse.size, sparse.count)
    assert len(payload) == min(len(encode(sparse, coding=coding).payload) for coding in others)
    assert torch.equal(whole(decode(payload, sparse.size)), whole(sparse))


@given(st.integers(0, 500), st.data(), st.integers(0, 2**64 - 1))
def test_a_seed_travels_in_place_of_indices(size: int, data: st.DataObject, seed: int) -> None:
    sparse = chosen_by(seed, size, data.draw(st.integers(0, size)))
    payload = encode(sparse, coding=IndexCoding.SEED).payload
    assert len(payload) == HEADER_BYTES + 4 * sparse.count + 8
    assert same(decode(payload, size), sparse)
    assert len(encode(sparse).payload) == payload_bytes(size, sparse.count, seeded=True)


def test_what_pays_when() -> None:
    def chosen(size: int, count: int, seed: int | None = None) -> IndexCoding:
        sparse = Sparse(size, torch.arange(count), torch.ones(count), seed)
        return IndexCoding(encode(sparse).payload[5])

    assert chosen(1000, 1000) is IndexCoding.DENSE
    assert chosen(1000, 990) is IndexCoding.DENSE
    assert chosen(1000, 500) is IndexCoding.BITMAP
    assert chosen(1000, 20) is IndexCoding.ELIAS_FANO
    assert chosen(1_000_000, 1) is IndexCoding.INT32
    assert chosen(1000, 20, seed=5) is IndexCoding.SEED
    assert chosen(1_000_000, 1, seed=5) is IndexCoding.INT32


def test_nothing_at_all() -> None:
    for size in (0, 5):
        sparse = Sparse(size, torch.empty(0, dtype=torch.int64), torch.empty(0))
        payload = encode(sparse).payload
        assert len(payload) == HEADER_BYTES
        assert decode(payload, size).count == 0


class Signs(Stateless):
    """One bit for each value, one number for all: cannot say 0."""

    code: ClassVar[int] = 255
    keeps_zero: ClassVar[bool] = False

    def __init__(self, layout: Layout) -> None:
        del layout

    def section_bytes(self, count: int) -> int:
        return 4 + -(-count // 8)

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        del rng
        scale = np.abs(values).mean(dtype=np.float32) if values.size else np.float32(0)
        section[:4].view("<f4")[0] = scale
        section[4:] = np.packbits(values < 0, bitorder="little")
        return np.where(values < 0, -scale, scale)

    @classmethod
    def read(cls, section: Bytes, count: int) -> Floats:
        if section.size != 4 + -(-count // 8):
            raise WireError(f"{section.size} B for {count} signs")
        negative = np.unpackbits(section[4:], count=count, bitorder="little").view(np.bool_)
        scale = np.float32(section[:4].copy().view("<f4")[0])
        return np.where(negative, -scale, scale)


class Halves(Fp32):
    """Float32 without its lower half, so that what is read is not what was sent."""

    code: ClassVar[int] = 254

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        kept = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        return super().write(kept, section, rng)


@pytest.fixture
def more_codings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered after payloads have been read, as another package's may be."""
    assert coding_of(0) is Fp32
    monkeypatch.setattr(codings, "_own", dict(codings._own))
    codings.add("signs", Signs)
    codings.add("halves", Halves)


@pytest.mark.usefixtures("more_codings")
def test_values_that_cannot_be_zero_are_never_sent_for_others() -> None:
    """A bitmap and 90 signs are longer than 100 signs, which would give values to all 100."""
    sparse = Sparse(100, torch.arange(90), torch.ones(90))
    encoded = encode(sparse, Signs(Layout(())))
    assert IndexCoding(encoded.payload[5]) is IndexCoding.BITMAP
    length = payload_bytes(100, 90, Signs(Layout(())).section_bytes, keeps_zero=False)
    assert len(encoded.payload) == length
    assert same(decode(encoded.payload, 100), sparse)
    with pytest.raises(WireError, match="cannot write zeros"):
        encode(sparse, Signs(Layout(())), coding=IndexCoding.DENSE)


@pytest.mark.usefixtures("more_codings")
@pytest.mark.parametrize("coding", [IndexCoding.DENSE, *SPARSE_CODINGS])
def test_the_sender_knows_what_will_be_read(coding: IndexCoding) -> None:
    sparse = Sparse(9, torch.tensor([2, 3, 7]), torch.tensor([1.001, -3.3, 1e-3]))
    encoded = encode(sparse, Halves(Layout(())), coding=coding)
    assert not torch.equal(encoded.values, sparse.values)
    assert torch.equal(whole(decode(encoded.payload, 9)), whole(Sparse(9, sparse.indices, encoded.values)))  # fmt: skip


@pytest.mark.usefixtures("more_codings")
def test_two_value_codings_with_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Signs, "code", Fp32.code)
    with pytest.raises(ValueError, match="cannot have the number 0"):
        coding_of(253)
    monkeypatch.undo()
    with pytest.raises(WireError, match="unknown value coding 253"):
        coding_of(253)


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_at_any_alignment(buffer: Any) -> None:
    for sparse, written in GOLDEN.values():
        payload = bytes.fromhex(written)
        assert same(decode(buffer(payload), sparse.size), sparse)
        for shift in range(1, 8):
            shifted = memoryview(bytearray(bytes(shift) + payload))[shift:]
            assert same(decode(shifted, sparse.size), sparse)


def test_values_are_not_copied_from_a_writable_buffer() -> None:
    payload = encode(Sparse(2, None, torch.tensor([1.0, 2.0]))).payload
    values = decode(payload, 2).values
    payload[HEADER_BYTES : HEADER_BYTES + 4] = struct.pack("<f", 5.0)
    assert values.tolist() == [5.0, 2.0]
    assert decode(bytes(payload), 2).values.add_(1).tolist() == [6.0, 3.0]


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


def test_strided_tensors() -> None:
    indices, values = torch.arange(10)[::3], torch.arange(8.0)[::2]
    assert same(decode(encode(Sparse(10, indices, values)).payload, 10), Sparse(10, indices, values))  # fmt: skip


def test_far_apart_in_a_very_long_vector() -> None:
    indices = torch.tensor([0, 2**31, MAX_SIZE - 1])
    sparse = Sparse(MAX_SIZE, indices, torch.ones(3))
    payload = encode(sparse).payload
    assert IndexCoding(payload[5]) is IndexCoding.ELIAS_FANO
    assert same(decode(payload, MAX_SIZE), sparse)
    with pytest.raises(WireError, match="too long"):
        encode(sparse, coding=IndexCoding.INT32)


def test_the_header_is_what_it_says() -> None:
    for coding, (sparse, written) in GOLDEN.items():
        raw = np.frombuffer(bytes.fromhex(written), np.uint8)
        found = Header.read(raw, sparse.size)
        assert found == Header(coding, 0, sparse.size, sparse.count, 4 * sparse.count)
        assert found.payload_bytes == raw.size


# -- memory ------------------------------------------------------------------------------------


def allocated(work: Callable[[], object]) -> int:
    """Most bytes that ``work`` held at a time, numpy's among them."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


SOME = 4_000
"""Python's own small objects."""


@pytest.mark.parametrize("coding", [None, IndexCoding.DENSE, *SPARSE_CODINGS])
def test_sending_allocates_nothing_after_the_first_time(coding: IndexCoding | None) -> None:
    size = 1_000_000
    indices = torch.arange(0, size, 10)
    sparse, buffer, rng = Sparse(size, indices, torch.ones(indices.numel())), PayloadBuffer(), Random(0)  # fmt: skip
    first = bytes(encode(sparse, rng=rng, buffer=buffer, coding=coding).payload)
    assert allocated(lambda: encode(sparse, rng=rng, buffer=buffer, coding=coding)) < SOME
    assert encode(sparse, rng=rng, buffer=buffer, coding=coding).payload == first


@pytest.mark.parametrize("coding", [IndexCoding.DENSE, *SPARSE_CODINGS])
def test_reading_into_scratch_allocates_nothing(coding: IndexCoding) -> None:
    size = 1_000_000
    indices = torch.arange(0, size, 10)
    sparse, scratch = Sparse(size, indices, torch.ones(indices.numel())), Scratch()
    payload = encode(sparse, coding=coding).payload
    assert torch.equal(whole(decode(payload, size, scratch)), whole(sparse))
    assert allocated(lambda: decode(payload, size, scratch)) < SOME


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
