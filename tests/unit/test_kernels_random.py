"""Random numbers by position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_reference import uniforms as reference
from random_reference import uniforms_by_threads

from testbed.compress.indices import words
from testbed.compress.kernels.random_loops import uniform_at, word_at

SEEDS = st.integers(0, 2**64 - 1)


def test_words_are_those_of_splitmix64() -> None:
    """The published generator's first outputs for seed 1234567."""
    assert [int(word) for word in words(1234567, 5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@settings(deadline=None)
@given(seed=SEEDS, count=st.integers(0, 300))
def test_numba_and_numpy_agree(seed: int, count: int) -> None:
    drawn = np.full(count, 7.0, np.float32)
    uniforms_by_threads(seed, drawn)
    assert np.array_equal(drawn, reference(seed, count))


@settings(deadline=None)
@given(seed=SEEDS, index=st.integers(0, 1000))
def test_one_number_is_that_of_the_stream(seed: int, index: int) -> None:
    assert word_at(np.uint64(seed), np.uint64(index)) == words(seed, index + 1)[-1]
    assert uniform_at(np.uint64(seed), np.uint64(index)) == reference(seed, index + 1)[-1]


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_they_are_uniform(seed: int) -> None:
    drawn = reference(seed, 200_000).astype(np.float64)
    assert drawn.min() >= 0 and drawn.max() < 1
    share = np.bincount((drawn * 16).astype(int), minlength=16) / drawn.size
    assert np.abs(share - 1 / 16).max() < 5 * np.sqrt(1 / 16 / drawn.size)
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 5 / np.sqrt(drawn.size)
