"""Radix select against sorting, and the threshold that stays the same."""

from __future__ import annotations

from random import Random

import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from select_rig import compensated

from testbed.compatibility import resolve
from testbed.compress.base import Sparse
from testbed.compress.compressor import Compressor
from testbed.compress.gradient_stats import element_count
from testbed.compress.selectors.threshold import Threshold
from testbed.compress.selectors.threshold_search import LEAST_MAGNITUDE
from testbed.compress.selectors.topk import Radix, TopK
from testbed.errors import InputError

torch.set_num_threads(1)

TIED = st.sampled_from([-3.0, -1.0, -0.0, 0.0, 1.0, 2.0, 3.0, LEAST_MAGNITUDE, -1e-40, 3e38])
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
vectors = st.lists(TIED, min_size=1, max_size=80) | st.lists(FINITE, min_size=1, max_size=80)


def indices_of(sent: Sparse) -> list[int]:
    return list(range(sent.size)) if sent.indices is None else sent.indices.tolist()


@settings(max_examples=examples(300), deadline=None)
@given(vector=vectors, density=st.floats(0.001, 1.0))
def test_radix_selects_the_largest_and_of_equal_ones_the_first(
    vector: list[float], density: float
) -> None:
    flat = torch.tensor(vector, dtype=torch.float32)
    sent = Radix().select(compensated(flat), density, Random(0))
    count = max(1, round(density * len(vector)))
    order = sorted(range(len(vector)), key=lambda i: (-abs(float(flat[i])), i))
    assert indices_of(sent) == sorted(order[:count])
    assert sent.values.tolist() == flat[indices_of(sent)].tolist()
    if sent.indices is not None:
        assert sent.selection is not None
        least = abs(float(flat[order[count - 1]]))
        assert sent.selection.threshold == least
        assert sent.selection.ties == sum(abs(x) == least for x in flat.tolist()) - 1


@pytest.mark.parametrize("density", [1e-6, 0.001, 0.01, 0.3, 0.999])
@pytest.mark.parametrize("levels", [None, 40])
def test_radix_is_topk(density: float, levels: int | None) -> None:
    """Long vectors, over several chunks; ``levels``: rounded, so that there are ties everywhere."""
    flat = torch.randn(600_000, generator=torch.Generator().manual_seed(1))
    if levels is not None:
        flat = (flat * levels / 4).round() / levels
    radix = Radix()
    for _ in range(2):  # with the buffers of the first time
        sent = radix.select(compensated(flat), density, Random(0))
        wanted = TopK().select(compensated(flat), density, Random(0))
        assert sent.indices is not None
        assert wanted.indices is not None
        assert torch.equal(sent.indices, wanted.indices)
        assert torch.equal(sent.values, wanted.values)
        assert sent.count == element_count(flat.numel(), density)


def test_radix_reads_twice_and_a_little() -> None:
    flat = torch.randn(100_000, generator=torch.Generator().manual_seed(1))
    how = Radix().select(compensated(flat), 0.01, Random(0)).selection
    assert how is not None
    assert 2.03 <= how.passes <= 2.15


@settings(max_examples=examples(100), deadline=None)
@given(vector=vectors, at=st.sampled_from([LEAST_MAGNITUDE, 0.5, 1.0, 2.5, 3.0, 1e30]))
def test_threshold_by_definition(vector: list[float], at: float) -> None:
    flat = torch.tensor(vector, dtype=torch.float32)
    at = float(torch.tensor(at))
    sent = Threshold(at=at).select(compensated(flat), 0.5, Random(0))
    magnitudes = [abs(x) for x in flat.tolist()]
    chosen = [i for i, x in enumerate(magnitudes) if x >= at]
    assert indices_of(sent) == chosen
    assert sent.values.tolist() == flat[indices_of(sent)].tolist()


@pytest.mark.parametrize("at", [0.0, -1.0, float("nan"), float("inf")])
def test_threshold_must_be_positive(at: float) -> None:
    with pytest.raises(InputError, match=r"at: .*(positive float32|finite number), got"):
        Threshold(at=at)


def test_strom_sends_nothing_that_is_below_its_threshold() -> None:
    compressor = Compressor(resolve("strom-0.1").recipe)
    read, whole = torch.zeros(4), torch.zeros(4)
    for step in range(40):
        packed = compressor.compress("x", torch.tensor([0.01, 0.002, 0.0, 0.0]), 1.0, Random(0))
        out = torch.empty(4)
        compressor.decompress("x", packed.payload, out)
        read, whole = read + out, whole + torch.tensor([0.01, 0.002, 0.0, 0.0])
        assert packed.count == int(out.count_nonzero())
        assert bool(((read - whole).abs() < 0.1 + 1e-6).all()), step
    assert read[0].item() == pytest.approx(0.3, abs=0.11)
    assert read[1:].tolist() == [0.0, 0.0, 0.0]
