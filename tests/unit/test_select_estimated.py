"""Selectors that estimate their threshold: what must hold on any vector, and the promise of each on its own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from select_rig import (
    SIZE,
    compensated,
    heavy,
    laplace,
    largest,
    mostly_zero,
    normal,
    signs,
    spiked,
)

from testbed.compress import kernels
from testbed.compress.base import Sparse
from testbed.compress.selectors.dgc import Dgc, Hierarchical
from testbed.compress.selectors.dryden import Dryden
from testbed.compress.selectors.gaussian import Gaussian
from testbed.compress.selectors.mstopk import MsTopK
from testbed.compress.selectors.redsync import Search, Trimmed
from testbed.compress.selectors.sidco import SidcoExponential, SidcoGamma, SidcoPareto
from testbed.compress.selectors.threshold_search import ThresholdEstimator
from testbed.errors import InputError

torch.set_num_threads(1)


METHODS: dict[str, Callable[[], ThresholdEstimator]] = {
    "sidco-e": SidcoExponential,
    "sidco-p": SidcoPareto,
    "sidco-gp": SidcoGamma,
    "dgc": Dgc,
    "hierarchical": Hierarchical,
    "redsync-trimmed": Trimmed,
    "redsync-search": Search,
    "gaussian": Gaussian,
    "mstopk": MsTopK,
    "dryden": Dryden,
}


every = pytest.mark.parametrize("name", METHODS)


EXACT = ("hierarchical", "redsync-trimmed")


AWKWARD: dict[str, Callable[[], torch.Tensor]] = {
    "laplace": lambda: laplace(20_000),
    "heavy": lambda: heavy(20_000),
    "spiked": lambda: spiked(20_000),
    "mostly zero": lambda: mostly_zero(20_000),
    "one": lambda: torch.nn.functional.one_hot(torch.tensor(77), 5000).float(),
    "equal": lambda: torch.full((5000,), -0.75),
    "equal, both signs": lambda: 0.1 * signs(5000, 3),
    "two values": lambda: torch.where(normal(5000) > 1, 3.0, -0.1),
    "negative": lambda: -laplace(5000).abs(),
    "shifted": lambda: normal(20_000) + 100,
    "tiny numbers": lambda: normal(5000) * 1e-42,
    "tiny and one": lambda: torch.cat([torch.full((4999,), 1e-42), torch.tensor([-1.0])]),
    "huge numbers": lambda: (normal(5000) * 1e38).clamp(-3e38, 3e38),
    "rising": lambda: torch.arange(4000.0),
}


DENSITIES = (1e-6, 0.01, 0.1, 0.29, 0.9)


def sound(sent: Sparse, vector: torch.Tensor) -> None:
    """Some elements of ``vector``, in order, none of them zero without need, and a report that fits."""
    assert sent.selection is not None
    assert sent.selection.passes >= 0
    if sent.indices is None:
        assert torch.equal(sent.values, vector)
        return
    assert 1 <= sent.count <= sent.size == vector.numel()
    assert bool((sent.indices.diff() > 0).all())
    assert torch.equal(sent.values, vector[sent.indices])
    assert sent.values.all() or not vector.any()
    if sent.selection.threshold is not None:
        least = float(sent.values.abs().min())
        assert least >= sent.selection.threshold
        tied = int((sent.values.abs() == sent.selection.threshold).sum())
        assert sent.selection.ties == max(0, tied - 1)


@every
@pytest.mark.parametrize("kind", AWKWARD)
def test_any_vector(name: str, kind: str) -> None:
    vector = AWKWARD[kind]()
    before = vector.clone()
    selector, rng = METHODS[name](), Random(1)
    for density in DENSITIES:
        for _ in range(6):  # stages change after five
            sent = selector.select(compensated(vector), density, rng)
            sound(sent, vector)
            if kind.startswith("equal") and density < 0.3:  # else a threshold may lie below them
                assert sent.count <= max(1, round(density * vector.numel()))
    assert torch.equal(vector, before)


@every
@settings(max_examples=examples(60), deadline=None)
@given(
    vector=st.lists(
        st.one_of(
            st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0]),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
        ),
        min_size=1,
        max_size=40,
    ),
    density=st.floats(0.001, 1.0),
    seed=st.integers(0, 9),
)
def test_tiny_vectors_with_and_without_estimation(
    name: str, vector: list[float], density: float, seed: int
) -> None:
    flat = torch.tensor(vector)
    given_ = compensated(flat)
    sound(METHODS[name]().select(given_, density, Random(seed)), flat)
    estimating: Any = METHODS[name]()
    estimating.exact_below = 0
    sound(estimating.select(given_, density, Random(seed)), flat)


@every
def test_nothing_at_all_and_everything(name: str) -> None:
    assert METHODS[name]().select(compensated(torch.empty(0)), 0.1, Random(0)).count == 0
    zeros = METHODS[name]().select(compensated(torch.zeros(9000)), 0.1, Random(0))
    assert (zeros.count, zeros.values.tolist()) == (1, [0.0])
    everything = METHODS[name]().select(compensated(normal(2000)), 1.0, Random(0))
    assert everything.indices is None
    assert everything.selection is not None
    assert everything.selection.passes == 0


@every
def test_deterministic_and_free_of_earlier_vectors(name: str) -> None:
    """Buffers are used again; only what ``state`` says is carried on."""
    used, fresh = METHODS[name](), METHODS[name]()
    used.select(compensated(heavy()), 0.2, Random(3))
    used.load(fresh.state())
    for density in (0.1, 0.01, 0.001):
        one, other = (s.select(compensated(laplace()), density, Random(7)) for s in (used, fresh))
        assert one.indices is not None
        assert other.indices is not None
        assert torch.equal(one.indices, other.indices)
        assert one.selection == other.selection


@every
def test_state_continues_identically(name: str) -> None:
    straight = METHODS[name]()
    for step in range(7):
        straight.select(compensated(normal(seed=step)), 0.01, Random(step))
    again = METHODS[name]()
    again.load(straight.state())
    for step in range(7, 14):
        one, other = (
            s.select(compensated(normal(seed=step)), 0.01, Random(step)) for s in (straight, again)
        )
        assert one.count == other.count
        assert one.selection == other.selection


class Reads:
    """Passes everything on, and counts the elements that were read."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.elements = inner, 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(flat: torch.Tensor, *rest: Any) -> Any:
            self.elements += flat.numel()
            return getattr(self._inner, name)(flat, *rest)

        return call


@every
@pytest.mark.parametrize("density", [0.1, 0.003])
def test_passes_are_what_was_read(
    name: str, density: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All reads through the kernels are counted; so is a part of the reads that are made beside them."""
    given_ = compensated(laplace())
    reads = Reads(kernels.of(given_.flat))
    monkeypatch.setattr(kernels, "of", lambda _: reads)
    selector = METHODS[name]()
    for step in range(11):
        reads.elements = 0
        sent = selector.select(given_, density, Random(step))
        assert sent.selection is not None
        ties = (
            sent.count if sent.selection.threshold is not None else 0
        )  # counted among what is sent
        seen = 1 + (reads.elements - ties) / SIZE
        if name.startswith("sidco") or name in ("gaussian", "redsync-search"):
            assert sent.selection.passes == pytest.approx(seen, abs=1e-9)
        else:
            assert seen - 1e-9 <= sent.selection.passes <= seen + 1


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(
    "vector", [laplace(20_000), heavy(20_000), normal(20_000).round(decimals=1) + 9]
)
@pytest.mark.parametrize("density", [0.001, 0.01, 0.1, 0.45, 0.95])
def test_those_that_are_exact(name: str, vector: torch.Tensor, density: float) -> None:
    sent = METHODS[name]().select(compensated(vector), density, Random(2))
    assert sent.indices is not None
    assert sent.indices.tolist() == largest(vector, round(20_000 * density))


@every
def test_small_vectors_are_exact(name: str) -> None:
    vector = laplace(900)
    sent = METHODS[name]().select(compensated(vector), 0.05, Random(0))
    assert sent.indices is not None
    if name == "dryden":
        positive = (sent.values > 0).sum()
        expected = 45 * (vector > 0).sum() / 900
        assert abs(positive - expected) <= 0.5
        assert sent.count == 45
    else:
        assert sent.indices.tolist() == largest(vector, 45)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Dgc(sample=0.0), "sample: .*greater than 0, got 0.0"),
        (lambda: Hierarchical(sample=1.5), "sample: .*less than or equal to 1, got 1.5"),
        (lambda: Dryden(sample=float("nan")), "sample: .*got nan"),
        (lambda: MsTopK(passes=0), "passes: .*greater than or equal to 1, got 0"),
        (lambda: Search(width=0.0), "width: .*greater than 0, got 0.0"),
        (lambda: Search(reuse=0), "reuse: .*greater than or equal to 1, got 0"),
    ],
)
def test_options_outside_their_range(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()
