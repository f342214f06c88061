"""Several payloads in one message, one for each parameter."""

from __future__ import annotations

import tracemalloc

import pytest
import torch

from testbed.compress.base import BufferPool, PayloadBuffer, Sparse
from testbed.compress.layout import Layout
from testbed.compress.payload import decode_layers, encode, join, read_message, split
from testbed.errors import WireError

LAYOUT = Layout.of([("weight", (3, 4)), ("bias", (3,)), ("scale", ()), ("empty", (0,))])
PARTS = [
    Sparse(12, torch.tensor([2, 11]), torch.tensor([1.0, -2.0])),
    Sparse(3, None, torch.tensor([3.0, 4.0, 5.0])),
    Sparse(1, torch.empty(0, dtype=torch.int64), torch.empty(0)),
    Sparse(0, None, torch.empty(0)),
]
GOLDEN = """
    4e52574c 01 000000
    2a00000000000000 2c00000000000000 2000000000000000 2000000000000000
    4e525747 02 01 00 00 0c00000000000000 0200000000000000 0800000000000000 0000803f 000000c0 0408
    4e525747 02 00 00 00 0300000000000000 0300000000000000 0c00000000000000 00004040 00008040 0000a040
    4e525747 02 02 00 00 0100000000000000 0000000000000000 0000000000000000
    4e525747 02 00 00 00 0000000000000000 0000000000000000 0000000000000000
"""


def message(parts: list[Sparse]) -> memoryview:
    return join([bytes(encode(part).payload) for part in parts], PayloadBuffer())


def test_golden_bytes() -> None:
    assert message(PARTS).hex() == "".join(GOLDEN.split())


def test_parts_are_put_together() -> None:
    for scratch in (None, BufferPool()):
        found = read_message(message(PARTS), LAYOUT, scratch)
        assert found.size == LAYOUT.size == 16
        assert found.indices is not None
        assert found.indices.tolist() == [2, 11, 12, 13, 14]
        assert found.values.tolist() == [1.0, -2.0, 3.0, 4.0, 5.0]


def test_dense_where_every_part_is() -> None:
    found = decode_layers(message([PARTS[1], PARTS[3], PARTS[1]]), [3, 0, 3])
    assert found.indices is None
    assert found.values.tolist() == [3.0, 4.0, 5.0] * 2


def test_no_parameters_at_all() -> None:
    assert decode_layers(message([]), []).size == 0


def test_one_payload_is_a_message_too() -> None:
    sparse = Sparse(16, torch.tensor([5]), torch.tensor([1.0]))
    found = read_message(encode(sparse).payload, LAYOUT)
    assert found.indices is not None
    assert found.indices.tolist() == [5]


def test_reading_into_scratch_allocates_no_more_than_one_part() -> None:
    """Float32 values that are not aligned in the message are copied once more, part by part."""
    size, scratch = 300_000, BufferPool()
    indices = torch.arange(0, size, 10)
    part = Sparse(size, indices, torch.ones(indices.numel()))
    written = message([part, part])
    first = decode_layers(written, [size, size], scratch)
    tracemalloc.start()
    again = decode_layers(written, [size, size], scratch)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 4 * part.count + 8_000
    assert again.values.data_ptr() == first.values.data_ptr()
    assert again.indices is not None
    assert torch.equal(again.indices, torch.cat([indices, indices + size]))


def test_the_buffer_is_used_again() -> None:
    buffer = PayloadBuffer()
    first = join([b"abc", b""], buffer)
    assert [bytes(part) for part in split(first, 2)] == [b"abc", b""]
    again = join([b"x"], buffer)
    assert bytes(again) == bytes(first[: len(again)])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: m[:39], "not a message of 4 payloads"),
        (lambda m: b"NRWL\2" + m[5:], "not a message of 4 payloads"),
        (lambda m: b"NRWL\1\0\0\1" + m[8:], "not a message of 4 payloads"),
        (lambda m: m + b"\0", r"4 payloads of 150 B in a message of 191 B"),
        (lambda m: m[:15] + b"\1" + m[16:], "4 payloads of 72057594037928086 B"),
        (lambda m: m[:8] + b"\x2b" + m[9:16] + b"\x2b" + m[17:], "payload 1 of 4: .* 43 B instead"),
        (lambda m: m[:86] + b"\x09" + m[87:], "payload 2 of 4: payload version 9"),
        (lambda m: m[:80] + b"\x05\x08" + m[82:], "payload 1 of 4: 3 bits are set where 2"),
    ],
)
def test_what_is_wrong_is_said(change: object, sentence: str) -> None:
    assert callable(change)
    with pytest.raises(WireError, match=sentence):
        read_message(change(bytes(message(PARTS))), LAYOUT)
