"""The Laplacian threshold: how many it sends, which, in how many passes, and what it carries along."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log
from random import Random
from statistics import fmean

import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from select_rig import compensated

from testbed.compress import kernels
from testbed.compress.base import Sparse
from testbed.compress.kernels.torch_ops import Operations
from testbed.compress.selectors.laplace import Laplace, ThresholdPredictor
from testbed.compress.selectors.threshold_search import LEAST_MAGNITUDE, ProbeWindow, probe
from testbed.errors import InputError

torch.set_num_threads(1)
SIZE = 120_000
SHAPES = ["laplace", "normal", "heavy", "layers", "half zeros"]


def drifting(shape: str, count: int, size: int = SIZE, seed: int = 1) -> Iterator[torch.Tensor]:
    """Vectors of that shape; scales of all and of single layers change from one to the next."""
    generator, random = torch.Generator().manual_seed(seed), Random(seed)
    scales = [exp(random.gauss(0, 3)) for _ in range(6)]
    for _ in range(count):
        scales = [scale * exp(random.gauss(0, 0.1)) for scale in scales]
        normal = torch.randn(size, generator=generator)
        uniform = torch.rand(size, generator=generator).clamp_min(1e-7)
        match shape:
            case "laplace":
                flat = uniform.log() * normal.sign()
            case "normal":
                flat = normal
            case "heavy":  # Pareto, without a variance
                flat = uniform.pow(-0.7) * normal.sign()
            case "layers":
                flat = torch.cat(
                    [part * s for part, s in zip(normal.chunk(6), scales, strict=True)]
                )
            case _:
                flat = torch.where(uniform < 0.5, normal, 0.0)
        yield flat * scales[0]


def check(flat: torch.Tensor, sent: Sparse, density: float) -> None:
    """The greatest magnitudes, within 5 % of their number."""
    wanted = max(1, round(density * flat.numel()))
    assert abs(sent.count - wanted) <= 0.05 * wanted
    assert sent.indices is not None
    assert bool((sent.indices.diff() > 0).all())
    assert torch.equal(sent.values, flat[sent.indices])
    left = torch.ones_like(flat, dtype=torch.bool)
    left[sent.indices] = False
    assert float(flat[left].abs().max()) <= float(sent.values.abs().min())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
def test_count_and_passes_over_steps_that_drift(shape: str, density: float) -> None:
    selector, passes = Laplace(), []
    for flat in drifting(shape, 30):
        sent = selector.select(compensated(flat), density, Random(0))
        check(flat, sent, density)
        assert sent.selection is not None
        assert sent.selection.ties == 0
        assert float(sent.values.abs().min()) >= (sent.selection.threshold or 0.0)
        passes.append(sent.selection.passes)
    assert max(passes) <= 5.0
    assert fmean(passes[3:]) <= 2.5


def test_where_few_are_not_free_half_of_the_steps_need_no_correction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Accelerator(Operations):
        few_are_free = False

    monkeypatch.setattr(kernels, "of", lambda _: Accelerator())
    direct = {}
    for few_are_free in (True, False):
        Accelerator.few_are_free = few_are_free
        selector, passes = Laplace(), []
        for flat in drifting("laplace", 40):
            sent = selector.select(compensated(flat), 0.01, Random(0))
            check(flat, sent, 0.01)
            assert sent.selection is not None
            passes.append(sent.selection.passes)
        direct[few_are_free] = sum(one == 2.0 for one in passes[10:])
    assert direct[True] == 0
    assert direct[False] >= 15


def test_the_first_estimate_is_the_papers() -> None:
    assert ThresholdPredictor().expected(0.01) == -log(0.01)
    flat = next(drifting("laplace", 1))
    how = Laplace().select(compensated(flat), 0.01, Random(0)).selection
    assert how is not None
    assert how.passes < 2.1
    assert how.threshold == pytest.approx(-log(0.01) * float(flat.abs().mean()), rel=0.03)


def test_the_density_may_change() -> None:
    selector, random = Laplace(), Random(3)
    for flat in drifting("layers", 40):
        density = exp(random.uniform(log(0.001), log(0.5)))
        check(flat, selector.select(compensated(flat), density, Random(0)), density)


@settings(max_examples=examples(200), deadline=None)
@given(
    vector=st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 3.0, 1e-45]), min_size=1, max_size=60),
    repeats=st.integers(1, 30),
    density=st.floats(0.001, 1.0),
    steps=st.integers(1, 3),
)
def test_ties_zeros_and_small_vectors(
    vector: list[float], repeats: int, density: float, steps: int
) -> None:
    """Only zeros are left out beyond the tolerance; at least one element is sent."""
    flat = torch.tensor(vector * repeats)
    selector = Laplace()
    for _ in range(steps):
        sent = selector.select(compensated(flat), density, Random(0))
        wanted = max(1, round(density * flat.numel()))
        nonzero = int(flat.count_nonzero())
        if sent.indices is None:
            assert wanted == flat.numel()
            continue
        assert sent.count >= 1
        if sent.count < 0.95 * wanted:
            assert sent.count == max(1, nonzero)
        assert sent.count <= 1.05 * wanted
        chosen = flat[sent.indices].abs()
        assert torch.equal(sent.values, flat[sent.indices])
        left = flat.abs().clone()
        left[sent.indices] = 0
        assert float(left.max()) <= float(chosen.min())


def test_ties_are_counted_and_the_first_are_sent() -> None:
    flat = torch.ones(10_000)
    flat[::2] = -1
    sent = Laplace().select(compensated(flat), 0.1, Random(0))
    assert sent.indices is not None
    assert sent.indices.tolist() == list(range(1000))
    assert sent.selection is not None
    assert sent.selection.ties == 9_999
    assert sent.selection.threshold == 1.0


def test_more_asked_for_than_is_not_zero() -> None:
    flat = torch.zeros(10_000)
    flat[17::100] = LEAST_MAGNITUDE
    selector = Laplace()
    for _ in range(3):
        sent = selector.select(compensated(flat), 0.5, Random(0))
        assert sent.indices is not None
        assert sent.indices.tolist() == list(range(17, 10_000, 100))
    assert sent.selection is not None
    assert sent.selection.passes == 2.0, "it has learnt that there is nothing below"
    nothing = selector.select(compensated(torch.zeros(10_000)), 0.5, Random(0))
    assert nothing.values.tolist() == [0.0]


def test_huge_and_tiny_magnitudes() -> None:
    for scale in (3e38, 1e-44):
        flat = torch.linspace(-1, 1, 5_001) * scale
        selector = Laplace()
        for _ in range(2):
            check(flat, selector.select(compensated(flat), 0.9, Random(0)), 0.9)


def test_tolerance_zero_is_exact() -> None:
    selector = Laplace(tolerance=0)
    for flat in drifting("normal", 3, 30_000):
        sent = selector.select(compensated(flat), 0.0123, Random(0))
        assert sent.count == round(0.0123 * 30_000)
        check(flat, sent, 0.0123)


@pytest.mark.parametrize("fit_every", [0, 2])
def test_a_checkpoint_goes_on_identically(fit_every: int) -> None:
    vectors = [compensated(flat) for flat in drifting("layers", 9, 20_000)]
    through, rng = Laplace(fit_every=fit_every), Random(7)
    for one_step in vectors[:5]:
        through.select(one_step, 0.02, rng)
    resumed, same = Laplace(fit_every=fit_every), Random()
    resumed.load(through.state())
    same.setstate(rng.getstate())
    for one_step in vectors[5:]:
        one = through.select(one_step, 0.02, rng)
        other = resumed.select(one_step, 0.02, same)
        assert one.indices is not None
        assert other.indices is not None
        assert torch.equal(one.indices.clone(), other.indices)
        assert one.selection == other.selection
    assert through.state() == resumed.state()
    assert rng.getstate() == same.getstate()
    assert all(isinstance(value, float) for value in through.state().values())


def test_the_fit_is_reported() -> None:
    selector, fits = Laplace(fit_every=2), []
    for flat in drifting("laplace", 4):
        selector.select(compensated(flat), 0.01, Random(0))
        fits.append(selector.fit)
    assert fits[0] is fits[1] is not fits[2] is fits[3]
    assert fits[2] is not None
    assert fits[2].laplace < 0.02 < fits[2].normal


def test_misses_widen_what_is_taken_out() -> None:
    aim = ThresholdPredictor()
    aim.update(4.6, 0.01, 1.0)
    before = aim.cautious(0.1)
    aim.missed()
    assert aim.cautious(0.1) < before < aim.expected(0.1)
    for _ in range(1000):
        aim.met()
    assert before < aim.cautious(0.1) < aim.expected(0.1)


def test_after_a_miss_long_vectors_of_an_accelerator_are_soon_within_the_tolerance_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another selection among few takes as long there as one of all."""

    class Accelerator(Operations):
        few_are_free = False

    monkeypatch.setattr(kernels, "of", lambda _: Accelerator())
    slacks = []
    for size in (999_999, 1_000_000):
        vector = torch.randn(size, generator=torch.Generator().manual_seed(1))
        selector = Laplace()
        for step in range(20):  # in the fourth step most of it becomes small
            scaled = (
                vector if step != 3 else torch.cat([vector[: size // 3], vector[size // 3 :] / 9])
            )
            selector.select(compensated(scaled), 0.01, Random(0))
        assert selector.state()["misses"] >= 1
        slacks.append(selector.state()["slack"])
    assert slacks[0] > 0.05
    assert slacks[1] < 0.05


def test_probing_gives_up_where_ties_lie_between() -> None:
    counts = {0.5: 100, 1.0: 100}

    def count_above(threshold: float) -> int:
        return counts.get(threshold, 100 if threshold <= 1.0 else 10)

    found, probes = probe(count_above, (0.5, 100), None, 1.0, ProbeWindow.around(40, 0.05))
    assert found is None
    assert probes <= 4


@pytest.mark.parametrize(
    "options",
    [{"tolerance": -0.1}, {"tolerance": 1.0}, {"tolerance": float("nan")}, {"fit_every": -1}],
)
def test_options_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(InputError):
        Laplace(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.1, 0.001])
def test_bisection_hits_the_count_by_whole_passes(shape: str, density: float) -> None:
    selector = Laplace(correction="bisection")
    for flat in drifting(shape, 5):
        sent = selector.select(compensated(flat), density, Random(0))
        check(flat, sent, density)
        assert sent.selection is not None
        passes = sent.selection.passes
        assert passes >= 3.0 and passes == round(passes)


def test_bisection_of_ties_and_of_few_that_are_not_0() -> None:
    tied = torch.tensor([1.0, -1.0] * 500 + [2.0] * 4)
    sent = Laplace(correction="bisection").select(compensated(tied), 0.01, Random(0))
    assert sent.count == 10 and sent.selection is not None and sent.selection.ties > 0
    assert sent.indices is not None and sent.indices.tolist() == [*range(6), *range(1000, 1004)]
    few = torch.zeros(1000)
    few[[3, 700]] = torch.tensor([1e-3, -5.0])
    sent = Laplace(correction="bisection").select(compensated(few), 0.1, Random(0))
    assert sent.indices is not None and sent.indices.tolist() == [3, 700]
    with pytest.raises(InputError, match="correction"):
        Laplace(correction="secant")
