"""The payload: exact bytes, every coding, its predicted length, and anything that is not one."""

from __future__ import annotations

import struct
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_rig import GOLDEN, SOME, SPARSE_CODINGS, allocated, chosen_by, messages, same, whole

from testbed.compress.base import (
    Allocator,
    BufferPool,
    Bytes,
    Floats,
    Options,
    PayloadBuffer,
    Recipe,
    Sparse,
    Values,
    allocate,
    codings,
)
from testbed.compress.builtin import coding_of
from testbed.compress.indices import IndexCoding
from testbed.compress.layout import Layout
from testbed.compress.payload import (
    HEADER_BYTES,
    MAX_SIZE,
    PayloadHeader,
    decode,
    encode,
    payload_bytes,
)
from testbed.compress.values.floats import Fp32
from testbed.errors import InputError, WireError

torch.set_num_threads(1)


@pytest.mark.parametrize("coding", IndexCoding)
def test_golden_bytes(coding: IndexCoding) -> None:
    sparse, written = GOLDEN[coding]
    assert encode(sparse, coding=coding).payload.hex() == written.replace(" ", "")
    assert same(decode(bytes.fromhex(written), sparse.size), sparse)


@settings(max_examples=examples(200), deadline=None)
@given(messages(), st.sampled_from(SPARSE_CODINGS))
def test_every_coding_brings_back_what_was_sent(sparse: Sparse, coding: IndexCoding) -> None:
    encoded = encode(sparse, coding=coding)
    assert torch.equal(encoded.values, sparse.values)
    assert same(decode(encoded.payload, sparse.size), sparse)


@settings(max_examples=examples(200), deadline=None)
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


class Signs(Values[Options]):
    """One bit for each value, one number for all: cannot say 0."""

    name = "signs"
    code: ClassVar[int] = 255
    keeps_zero: ClassVar[bool] = False

    def section_bytes(self, count: int) -> int:
        return 4 + -(-count // 8)

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        del rng
        scale = np.abs(values).mean(dtype=np.float32) if values.size else np.float32(0)
        section[:4].view("<f4")[0] = scale
        section[4:] = np.packbits(values < 0, bitorder="little")
        return np.where(values < 0, -scale, scale)

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = allocate) -> Floats:
        del room
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
    clash = "'fp32' and 'signs' cannot both have the number 0. `code` .* from 128 to 255"
    with pytest.raises(InputError, match=clash):
        coding_of(253)
    with pytest.raises(InputError, match=clash):
        Recipe().check()
    monkeypatch.setattr(Signs, "code", 256)
    with pytest.raises(InputError, match="'signs' cannot have the number 256"):
        Recipe().check()
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
        found = PayloadHeader.read(raw, sparse.size)
        assert found == PayloadHeader(coding, 0, sparse.size, sparse.count, 4 * sparse.count)
        assert found.payload_bytes == raw.size


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
    sparse, scratch = Sparse(size, indices, torch.ones(indices.numel())), BufferPool()
    payload = encode(sparse, coding=coding).payload
    assert torch.equal(whole(decode(payload, size, scratch)), whole(sparse))
    assert allocated(lambda: decode(payload, size, scratch)) < SOME
