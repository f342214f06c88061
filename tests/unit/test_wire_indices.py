"""Index codings: the loops against plain numpy, and sizes against the entropy."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.bench import reference
from testbed.compress import indices as elias_fano
from testbed.compress.base import BufferPool, codings, needs_all
from testbed.compress.indices import (
    IndexCoding,
    Indices,
    decode_indices,
    encode_indices,
    index_bytes,
)
from testbed.compress.kernels import index_codecs
from testbed.compress.layout import Layout
from testbed.compress.payload import HEADER_BYTES, payload_bytes

DENSITIES = [0.001, 0.01, 0.05, 0.1, 0.15, 0.2, 0.29, 0.5]
CODINGS = [IndexCoding.BITMAP, IndexCoding.INT32, IndexCoding.ELIAS_FANO]
WRITE: dict[IndexCoding, Callable[[Indices, int], Any]] = {
    IndexCoding.BITMAP: reference.bitmap_write,
    IndexCoding.INT32: lambda indices, _: reference.int32_write(indices),
    IndexCoding.ELIAS_FANO: reference.elias_fano_write,
}
READ: dict[IndexCoding, Callable[[Any, int, int], Indices]] = {
    IndexCoding.BITMAP: lambda section, *_: reference.bitmap_read(section),
    IndexCoding.INT32: lambda section, *_: reference.int32_read(section),
    IndexCoding.ELIAS_FANO: reference.elias_fano_read,
}


def drawn(size: int, count: int, seed: int = 0) -> Indices:
    found: Indices = np.random.default_rng(seed).choice(size, count, replace=False).astype(np.int64)
    return np.sort(found)


def agree(coding: IndexCoding, indices: Indices, size: int, scratch: BufferPool) -> None:
    """Both write the same bytes, and read them."""
    section = np.full(index_bytes(coding, size, indices.size), 0xAA, np.uint8)
    encode_indices(coding, section, indices, size, scratch)
    assert section.tobytes() == WRITE[coding](indices, size).tobytes()
    out = np.full(indices.size, -7)
    decode_indices(coding, section, size, out, scratch)
    assert np.array_equal(out, indices)
    assert np.array_equal(READ[coding](section, size, indices.size), indices)


@pytest.mark.parametrize("coding", CODINGS)
def test_loops_write_what_plain_numpy_writes(coding: IndexCoding) -> None:
    """One scratch for all, so that what one vector leaves behind meets the next."""
    scratch = BufferPool()
    for size, density in product((10_000, 1, 64, 65, 1000, 63, 4097, 100_000), (0, *DENSITIES, 1)):
        agree(coding, drawn(size, round(density * size)), size, scratch)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(CODINGS), st.sets(st.integers(0, 700), max_size=200), st.integers(0, 2000))
def test_any_indices(coding: IndexCoding, chosen: set[int], more: int) -> None:
    indices = np.array(sorted(chosen), np.int64)
    agree(coding, indices, int(indices[-1]) + 1 + more if chosen else more, BufferPool())


@given(st.integers(1, 20), st.integers(0, 2**20 - 1), st.integers(21, 40))
def test_elias_fano_of_few_in_a_very_long_vector(count: int, step: int, bits: int) -> None:
    """Low parts of up to 40 bits, which straddle words."""
    size = 2**bits
    indices = np.unique((np.arange(count, dtype=np.int64) * 2**19 + step) * 2 ** (bits - 21) % size)
    agree(IndexCoding.ELIAS_FANO, indices, size, BufferPool())


@given(st.integers(0, 2**40), st.data())
def test_the_low_bits_are_as_many_as_make_it_shortest(size: int, data: st.DataObject) -> None:
    count = data.draw(st.one_of(st.integers(0, size), st.integers(0, min(size, 1000))))
    lengths = [low * count + count + ((size - count) >> low) for low in range(42)]
    assert sum(elias_fano.bits(size, count)) == min(lengths)
    assert elias_fano.low_bits(size, count) == lengths.index(min(lengths))


def test_ones_are_counted_in_every_place() -> None:
    for bit in range(64):
        words = np.array([1 << bit, 2**64 - 1, 0], np.uint64)
        out = np.empty(65, np.int64)
        assert index_codecs.count_ones(words) == 65
        index_codecs.bitmap_read(words, out)
        assert out.tolist() == [bit, *range(64, 128)]


def entropy(density: float) -> float:
    """Bits for each element, of independent ones."""
    return -(density * math.log2(density) + (1 - density) * math.log2(1 - density))


@pytest.mark.parametrize("density", DENSITIES)
def test_indices_are_at_most_eleven_percent_above_their_entropy(density: float) -> None:
    size = 1_000_000
    count = round(density * size)
    shortest = min(8 * index_bytes(coding, size, count) for coding in CODINGS)
    assert shortest <= 1.11 * size * entropy(density)


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1, 0.29])
@pytest.mark.parametrize("size", [1_000_000, 25_000_000])
def test_a_payload_is_within_ten_percent_of_the_bound(size: int, density: float) -> None:
    """N·H(k) bits for the indices, and the values as their coding has them, down to 1 bit each."""
    count = round(density * size)
    for bits in (1, 2, 4, 8, 16, 32):
        section = -(-bits * count // 8)
        bound = (size * entropy(density)) / 8 + section
        length = payload_bytes(size, count, lambda m, b=bits: -(-b * m // 8), keeps_zero=False)  # type: ignore[misc]
        assert length <= 1.1 * bound


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1, 0.29])
@pytest.mark.parametrize("name", [n for n in codings if not needs_all(codings.get(n))])
def test_with_every_value_coding(name: str, density: float) -> None:
    coding, size = codings.get(name), 1_000_000
    count = round(density * size)
    values = coding(Layout.whole("all", size))
    length = payload_bytes(size, count, values.section_bytes, keeps_zero=values.keeps_zero)
    bound = size * entropy(density) / 8 + values.section_bytes(count)
    assert HEADER_BYTES < length <= 1.1 * bound


def test_the_table_of_sizes() -> None:
    """Of ``docs/reference/wire.md``: every column."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "wire.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| 0.")]
    assert len(rows) == 6
    size = 10_000_000
    for row in rows:
        density, *told = map(float, row)
        count = round(density * size)
        lengths = [8 * index_bytes(coding, size, count) for coding in CODINGS]
        found = [size * entropy(density), lengths[2], lengths[0], lengths[1]]
        for bits in (32, 1):
            found.append(count * (min(lengths) + bits * count) / (found[0] + bits * count))
        assert told == pytest.approx([x / count for x in found], abs=0.006)
