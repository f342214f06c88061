"""Hostile bytes are refused with a WireError, or are a message that is written in exactly these bytes.

``NARROWS_FUZZ=10000`` in the environment raises the number of examples of each kind.
"""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from testbed.compress.base import BufferPool, PayloadBuffer, Sparse, codings
from testbed.compress.indices import IndexCoding, index_bytes
from testbed.compress.kernels import index_codecs, random_loops
from testbed.compress.layout import Layout
from testbed.compress.payload import (
    HEADER_BYTES,
    MAX_SIZE,
    decode,
    decode_layers,
    encode,
    join,
    read_message,
    split,
)
from testbed.errors import WireError

torch.set_num_threads(1)
EXAMPLES = int(os.environ.get("NARROWS_FUZZ", "200"))
pytestmark = pytest.mark.timeout(max(300, EXAMPLES))
fuzzed: Callable[[Any], Any] = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck)
)
FLOAT32 = 0
CODINGS = list(IndexCoding)
NUMBERS = st.one_of(
    st.integers(0, 300),
    st.sampled_from([2**31, 2**31 + 1, 2**32, MAX_SIZE, MAX_SIZE + 1, 2**63, 2**64 - 1]),
    st.integers(0, 2**64 - 1),
)


def header(coding: int, size: int, count: int, length: int, value: int = FLOAT32) -> bytes:
    return struct.pack("<4sBBBBQQQ", b"NRWG", 2, coding, value, 0, size, count, length)


def survives(payload: bytes, size: int) -> None:
    """Read into kept memory or not, with what else it holds: the same, and the same bytes again."""
    try:
        sparse = decode(payload, size)
    except WireError:
        with pytest.raises(WireError):
            decode(payload, size, BufferPool())
        return
    assert sparse.size == size
    again = decode(bytearray(payload), size, BufferPool())
    for one in (sparse, again):
        if payload[6] == FLOAT32:  # other codings write what they were given, not what they read
            assert encode(one, coding=IndexCoding(payload[5])).payload == payload
    if sparse.indices is not None:
        assert bool((sparse.indices.diff() > 0).all())
        assert not sparse.count or 0 <= int(sparse.indices[0]) <= int(sparse.indices[-1]) < size


@st.composite
def messages(draw: st.DrawFn) -> Sparse:
    size = draw(st.integers(0, 300))
    every = st.sets(st.integers(0, size - 1), max_size=size) if size else st.just(set())
    chosen = sorted(draw(every))
    values = draw(st.lists(st.floats(width=32), min_size=len(chosen), max_size=len(chosen)))
    return Sparse(size, torch.tensor(chosen, dtype=torch.int64), torch.tensor(values, dtype=torch.float32))  # fmt: skip


@st.composite
def payloads(draw: st.DrawFn) -> tuple[bytes, int]:
    """A payload, and the size that it is for."""
    sparse = draw(messages())
    coding = draw(st.sampled_from([None, *IndexCoding]))
    if coding is IndexCoding.SEED:
        seed, count = draw(st.integers(0, 2**64 - 1)), sparse.count
        section = bytes(encode(Sparse(count, None, sparse.values)).payload[HEADER_BYTES:])
        head = header(coding, sparse.size, count, 4 * count)
        return head + section + seed.to_bytes(8, "little"), sparse.size
    return bytes(encode(sparse, coding=coding).payload), sparse.size


def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """Bits flipped, bytes inserted, removed, set or moved."""
    made = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(made) - 1)))
        match draw(st.sampled_from(["flip", "set", "insert", "remove", "cut", "swap"])):
            case "flip" if made:
                made[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if made:
                made[at] = draw(st.sampled_from([0, 1, 127, 128, 255]))
            case "insert":
                made[at:at] = draw(st.binary(max_size=9))
            case "remove":
                del made[at : at + draw(st.integers(1, 9))]
            case "cut":
                del made[at:]
            case "swap":
                made = made[at:] + made[:at]
    return bytes(made)


@fuzzed
@given(st.binary(max_size=200), NUMBERS)
def test_random_bytes(payload: bytes, size: int) -> None:
    survives(payload, size)


@fuzzed
@given(st.sampled_from(CODINGS), NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=300))
def test_random_bytes_after_a_header(
    coding: IndexCoding, size: int, count: int, length: int, body: bytes
) -> None:
    survives(header(coding, size, count, length) + body, size)


@fuzzed
@given(
    st.sampled_from(CODINGS),
    st.one_of(st.integers(0, 200), st.integers(0, MAX_SIZE)),
    st.integers(0, 40),
    st.binary(min_size=400, max_size=400),
)
def test_random_bytes_of_the_right_length(
    coding: IndexCoding, size: int, count: int, body: bytes
) -> None:
    count = size if coding is IndexCoding.DENSE else min(count, size)
    whole = 4 * count + index_bytes(coding, size, count)
    assume(whole <= len(body) and not (coding is IndexCoding.INT32 and size > 2**31))
    survives(header(coding, size, count, 4 * count) + body[:whole], size)


@fuzzed
@given(messages(), st.sampled_from(CODINGS[1:4]), st.data())
def test_indices_with_some_bits_flipped(
    sparse: Sparse, coding: IndexCoding, data: st.DataObject
) -> None:
    """What is most like a message: everything is right but a few bits of the index section."""
    payload = bytearray(encode(sparse, coding=coding).payload)
    begin = 8 * (HEADER_BYTES + 4 * sparse.count)
    assume(8 * len(payload) > begin)
    for bit in data.draw(st.lists(st.integers(begin, 8 * len(payload) - 1), max_size=4)):
        payload[bit // 8] ^= 1 << bit % 8
    survives(bytes(payload), sparse.size)


@fuzzed
@given(payloads(), st.data())
def test_whatever_happens_to_a_payload(made: tuple[bytes, int], data: st.DataObject) -> None:
    payload, size = made
    survives(payload, size)
    survives(changed(data.draw, payload), size)
    with pytest.raises(WireError):
        decode(payload[: data.draw(st.integers(0, len(payload) - 1))], size)
    with pytest.raises(WireError):
        decode(payload + b"\0", size)
    with pytest.raises(WireError, match=f"for {size} elements where {size + 1} are needed"):
        decode(payload, size + 1)


@fuzzed
@given(
    st.sampled_from([codings.get(name).code for name in codings]),
    st.integers(0, 100),
    st.integers(0, 100),
    st.binary(max_size=200),
)
def test_values_of_every_coding(value: int, size: int, count: int, body: bytes) -> None:
    """Sections of random bytes, alone and after those that the header counts."""
    for coding in (IndexCoding.DENSE, IndexCoding.SEED):
        count = size if coding is IndexCoding.DENSE else count
        section = body + bytes(8 if coding is IndexCoding.SEED else 0)
        survives(header(coding, size, count, len(body), value) + section, size)


# -- several payloads in one message -------------------------------------------------------------


def whole(sparse: Sparse) -> list[float]:
    full = torch.zeros(sparse.size)
    full[slice(None) if sparse.indices is None else sparse.indices] = sparse.values
    return full.tolist()


@st.composite
def containers(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    """A message of several payloads, and the sizes of the parts."""
    parts = draw(st.lists(payloads(), max_size=5))
    return bytes(join([part for part, _ in parts], PayloadBuffer())), [size for _, size in parts]


def container_survives(message: bytes, sizes: Sequence[int]) -> None:
    """Refused, or the same payloads one after the other make the same message, and say what it says."""
    try:
        sparse = decode_layers(message, sizes)
    except WireError:
        with pytest.raises(WireError):
            decode_layers(message, sizes, BufferPool())
        return
    parts = split(message, len(sizes))
    assert join(parts, PayloadBuffer()) == message
    expected = [
        x for part, size in zip(parts, sizes, strict=True) for x in whole(decode(part, size))
    ]
    found = decode_layers(message, sizes, BufferPool())
    assert str(whole(found)) == str(whole(sparse)) == str(expected)  # NaN is not equal to itself
    assert sparse.size == sum(sizes)


@fuzzed
@given(containers(), st.data())
def test_whatever_happens_to_a_message_of_layers(
    made: tuple[bytes, list[int]], data: st.DataObject
) -> None:
    message, sizes = made
    container_survives(message, sizes)
    container_survives(changed(data.draw, message), sizes)
    container_survives(message, [*sizes, 0])
    if sizes:
        container_survives(message, [*sizes[:-1], sizes[-1] + 1])
    with pytest.raises(WireError):
        split(message[: data.draw(st.integers(0, len(message) - 1))], len(sizes))


@fuzzed
@given(
    st.lists(NUMBERS, max_size=4), st.lists(st.integers(0, 50), max_size=4), st.binary(max_size=200)
)
def test_random_lengths_in_a_message_of_layers(
    lengths: list[int], sizes: list[int], body: bytes
) -> None:
    table = b"".join(length.to_bytes(8, "little") for length in lengths)
    container_survives(b"NRWL\1\0\0\0" + table + body, sizes)


@fuzzed
@given(st.binary(max_size=100), st.booleans())
def test_random_messages_of_a_bucket(message: bytes, layers: bool) -> None:
    layout = Layout.of([("weight", (3, 4)), ("bias", (3,))])
    message = (b"NRWL\1\0\0\0" if layers else b"") + message
    try:
        assert read_message(message, layout).size == 15
    except WireError:
        assert layers or message[:4] != b"NRWL\1\0\0\0"


def peak_bytes(payload: bytes, size: int) -> int:
    """Most that Python allocates at once to decode this, for a vector of ``size`` and a short one."""
    tracemalloc.start()
    try:
        for receiver in (size, min(size, 300)):
            with suppress(WireError):
                decode(payload, receiver)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@fuzzed
@given(st.sampled_from(CODINGS), NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=300))
def test_memory_is_bounded_by_what_the_receiver_waits_for(
    coding: IndexCoding, size: int, count: int, length: int, body: bytes
) -> None:
    """Float32 values: 12 B come of every 4 that have arrived, whatever the header says."""
    for call in (*index_codecs.WARM, *random_loops.WARM):  # compiling takes memory
        call()
    payload = header(coding, size, count, length) + body
    most_bytes = 12 * len(body) // 4 + 4 * len(payload) + 10_000
    # tracemalloc counts every thread: that of pytest-xdist may have received something meanwhile
    assert any(peak_bytes(payload, size) < most_bytes for _ in range(10))
