"""Selectors that estimate their threshold: what must hold on any vector, and the promise of each on its own."""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.compress import kernels
from testbed.compress.base import Compensated, Sparse
from testbed.compress.selectors.dgc import Dgc
from testbed.compress.selectors.dryden import Dryden
from testbed.compress.selectors.estimated import Estimated
from testbed.compress.selectors.gaussian import Gaussian
from testbed.compress.selectors.hierarchical import Hierarchical
from testbed.compress.selectors.mstopk import MsTopK
from testbed.compress.selectors.redsync import Search, Trimmed
from testbed.compress.selectors.sample import prime_at_most
from testbed.compress.selectors.sidco import SidcoExponential, SidcoGamma, SidcoPareto
from testbed.errors import InputError

torch.set_num_threads(1)

METHODS: dict[str, Callable[[], Estimated]] = {
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
SIZE = 1 << 17


def compensated(vector: torch.Tensor) -> Compensated:
    seen = kernels.of(vector).measure(vector)
    return Compensated(vector, seen.sum_abs, seen.max_abs)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def signs(size: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 2, (size,), generator=generator(seed)).float() * 2 - 1


def laplace(size: int = SIZE, seed: int = 0) -> torch.Tensor:
    return torch.empty(size).exponential_(generator=generator(seed)) * signs(size, seed + 1)


def normal(size: int = SIZE, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=generator(seed))


def heavy(size: int = SIZE, seed: int = 0) -> torch.Tensor:
    """Log-normal magnitudes: the tail is far heavier than what any of the fits assumes."""
    return normal(size, seed) * torch.exp(2 * normal(size, seed + 1))


def spiked(size: int = SIZE) -> torch.Tensor:
    """One element is so large that the mean lies above all others."""
    vector = normal(size)
    vector[size // 3] = 1e30
    return vector


def mostly_zero(size: int = SIZE) -> torch.Tensor:
    vector = torch.zeros(size)
    vector[:: size // 50] = normal(len(range(0, size, size // 50)))
    return vector


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
    assert sent.how is not None
    assert sent.how.passes >= 0
    if sent.indices is None:
        assert torch.equal(sent.values, vector)
        return
    assert 1 <= sent.count <= sent.size == vector.numel()
    assert bool((sent.indices.diff() > 0).all())
    assert torch.equal(sent.values, vector[sent.indices])
    assert sent.values.all() or not vector.any()
    if sent.how.threshold is not None:
        least = float(sent.values.abs().min())
        assert least >= sent.how.threshold
        tied = int((sent.values.abs() == sent.how.threshold).sum())
        assert sent.how.ties == max(0, tied - 1)


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
@settings(max_examples=60, deadline=None)
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
    assert everything.how is not None
    assert everything.how.passes == 0


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
        assert one.how == other.how


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
        assert one.how == other.how


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
        assert sent.how is not None
        ties = sent.count if sent.how.threshold is not None else 0  # counted among what is sent
        seen = 1 + (reads.elements - ties) / SIZE
        if name.startswith("sidco") or name in ("gaussian", "redsync-search"):
            assert sent.how.passes == pytest.approx(seen, abs=1e-9)
        else:
            assert seen - 1e-9 <= sent.how.passes <= seen + 1


def largest(vector: torch.Tensor, count: int) -> list[int]:
    """Largest magnitude first, of equal ones the first; ascending."""
    order = vector.abs().sort(descending=True, stable=True).indices[:count]
    return sorted(order.tolist())


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


@pytest.mark.parametrize("density", [0.25, 0.1, 0.01, 0.001])
def test_dgc_keeps_within_its_bounds(density: float) -> None:
    """Not below 0.8 of the target by a threshold that was lowered, not above 1.3 times."""
    for vector in (laplace(), normal(), heavy(), normal() + 100):
        for seed in range(5):
            sent = Dgc().select(compensated(vector), density, Random(seed))
            assert 0.8 <= sent.count / round(SIZE * density) <= 1.3


def at_sampled_places(high: float, low: float) -> tuple[torch.Tensor, Random]:
    """``high`` wherever DGC with 1 % and that source of numbers looks at a density of 0.1, else ``low``."""
    distance = prime_at_most(SIZE // (SIZE // 100 + 1))
    vector = torch.full((SIZE,), low)
    vector[Random(5).getrandbits(64) % distance :: distance] = high
    return vector, Random(5)


def test_dgc_lowers_a_threshold_that_is_too_high() -> None:
    vector, rng = at_sampled_places(1.0, 0.6)
    sent = Dgc().select(compensated(vector), 0.1, rng)
    assert sent.count == round(0.1 * SIZE)  # three times lower everything reaches it: cut exactly
    assert sent.how is not None
    # statistics; the sample, twice; 1, 0.8, 0.64 and 0.512 of its threshold; all, to part; what is left
    assert sent.how.passes == pytest.approx(1 + 2 * 0.0103 + 4 + 2 + 1, abs=0.01)


def test_dgc_gives_up_after_ten_times() -> None:
    vector, rng = at_sampled_places(1.0, 0.1)
    sent = Dgc().select(compensated(vector), 0.1, rng)
    assert set(sent.values.tolist()) == {1.0}
    assert sent.how is not None
    assert sent.how.threshold == pytest.approx(0.8**10)


@pytest.mark.parametrize("density", [0.2, 0.01, 0.0005])
def test_mstopk_sends_the_count_and_nearly_the_largest(density: float) -> None:
    count = round(SIZE * density)
    for vector in (laplace(), normal(), heavy(), spiked(), normal().round(decimals=1)):
        for passes in (4, 30):
            sent = MsTopK(passes).select(compensated(vector), density, Random(4))
            assert sent.count == count
            assert sent.how is not None
            assert sent.how.passes <= passes + 5
        least = vector.abs().topk(count).values.min()
        assert sent.values.abs().min() >= 0.99 * least  # with 30 passes


def test_mstopk_takes_a_random_run_of_ties() -> None:
    vector = torch.ones(10_000)
    runs = set()
    for seed in range(5):
        indices = MsTopK().select(compensated(vector), 0.01, Random(seed)).indices
        assert indices is not None
        assert indices.tolist() == list(range(int(indices[0]), int(indices[0]) + 100))
        runs.add(int(indices[0]))
    assert len(runs) > 1


@pytest.mark.parametrize("density", [0.1, 0.02, 0.01])
def test_redsync_search_finds_one_to_two_times_the_count(density: float) -> None:
    sent = Search(width=0.001).select(compensated(laplace()), density, Random(0))
    assert 1 <= sent.count / round(SIZE * density) <= 2


def test_redsync_search_stops_at_its_width() -> None:
    sent = Search(width=0.2).select(compensated(spiked()), 0.01, Random(0))
    assert sent.count == 1
    assert sent.how is not None
    assert sent.how.passes == 1 + 3 + 1  # t = 1/2, 1/4, 1/8: the interval is then an eighth wide


def test_redsync_search_serves_several_calls() -> None:
    selector = Search(reuse=3)
    passes, thresholds = [], []
    for step, density in enumerate([0.01] * 5 + [0.1]):
        how = selector.select(compensated(laplace(seed=step)), density, Random(0)).how
        assert how is not None
        passes.append(how.passes)
        thresholds.append(how.threshold)
    assert [one > 2 for one in passes] == [True, False, False, True, False, True]
    assert thresholds[0] == thresholds[1] == thresholds[2] != thresholds[3] == thresholds[4]


def test_gaussian_on_a_normal_distribution() -> None:
    """The threshold's relative error is 1/√(2n); the count's, by the tail's slope, at most z² times it."""
    for density in (0.1, 0.01, 0.001):
        count = round(SIZE * density)
        sent = Gaussian().select(compensated(3 * normal()), density, Random(0))
        off = 5 * (11 / sqrt(2 * SIZE) + 1 / sqrt(count))
        assert sent.count / count == pytest.approx(1, abs=off)
        assert sent.how is not None
        assert sent.how.passes == 3


def test_gaussian_is_corrected_at_most_three_times() -> None:
    how = Gaussian().select(compensated(spiked()), 0.01, Random(0)).how
    assert how is not None
    assert how.threshold == pytest.approx(2.575 * 1e30 / sqrt(SIZE) / 8, rel=0.01)
    assert how.passes == 1 + 1 + 4


@pytest.mark.parametrize("share", [0.5, 0.2, 0.9])
def test_dryden_sends_the_same_proportion_of_both_signs(share: float) -> None:
    """Up to the sample's error: five standard deviations of a proportion in 1 311 elements."""
    chosen = torch.rand(SIZE, generator=generator(8)) < share
    vector = torch.where(chosen, 5.0, -0.2) * laplace().abs()
    positive = float((vector > 0).double().mean())
    for density in (0.1, 0.01):
        sent = Dryden().select(compensated(vector), density, Random(1))
        count = round(SIZE * density)
        assert sent.count == count
        assert float((sent.values > 0).double().mean()) == pytest.approx(
            positive, abs=5 * sqrt(positive * (1 - positive) / 1300)
        )
        for sign in (1, -1):
            own = sign * vector
            here = sent.indices[sent.values * sign > 0]  # type: ignore[index]
            assert here.tolist() == sorted(own.topk(here.numel()).indices.tolist())


def test_dryden_with_one_sign_only() -> None:
    sent = Dryden().select(compensated(-laplace().abs()), 0.01, Random(0))
    assert sent.count == round(SIZE * 0.01)
    assert bool((sent.values < 0).all())


def test_a_sample_sees_more_than_a_few_columns() -> None:
    """Every hundredth element of a matrix of a hundred columns would be one column."""
    vector = torch.zeros(2000, 100)
    vector[:, 0] = 1.0
    vector += 0.01 * normal(200_000).view(2000, 100)
    for seed in range(10):
        sent = Dgc().select(compensated(vector.flatten()), 0.01, Random(seed))
        assert 0.8 <= sent.count / 2000 <= 1.3


def test_primes() -> None:
    assert [prime_at_most(n) for n in (1, 2, 3, 4, 9, 25, 100, 102)] == [1, 2, 3, 3, 7, 23, 97, 101]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Dgc(sample=0.0), "outside"),
        (lambda: Hierarchical(sample=1.5), "outside"),
        (lambda: Dryden(sample=float("nan")), "outside"),
        (lambda: MsTopK(passes=0), "below 1"),
        (lambda: Search(width=0.0), "outside"),
        (lambda: Search(reuse=0), "below 1"),
    ],
)
def test_options_outside_their_range(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


def test_no_fit_is_far_off_on_its_own_distribution_in_one_stage() -> None:
    """A mean is off by 1/√n of itself: the count by ln(1/density) times as much, and by 1/√count."""
    for density in (0.1, 0.01):
        count = round(SIZE * density)
        off = 5 * (log(1 / density) / sqrt(SIZE) + 1 / sqrt(count))
        sent = SidcoExponential().select(compensated(laplace()), density, Random(0))
        assert sent.count / count == pytest.approx(1, abs=off)
