"""What every selector, value coding and memory must hold to, in every combination, whoever wrote it.

A part that is registered is tested here without a line of its own; what is promised of the values that a
coding gives back is in ``value_cases``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
import torch
from contract_rig import (
    ALL,
    AS_FEEDBACK,
    LARGE,
    MODEL,
    messages,
    predicted,
    random_vector,
    received,
    recipe,
    through_a_file,
)

from testbed.compress.base import Recipe, RecipeChoice, selectors
from testbed.compress.compressor import Compressor
from testbed.compress.layout import Layout
from testbed.compress.payload import decode
from testbed.errors import GradientError, InputError, WireError

torch.set_num_threads(1)


every = pytest.mark.parametrize("made", ALL)


pairs = pytest.mark.parametrize("made", [p for p in ALL if p.values[0].memory.name == "feedback"])


remembering = pytest.mark.parametrize("made", [p for p in ALL if p.values[0].memory.name != "none"])


feedback = pytest.mark.parametrize(
    "made", [p for p in ALL if p.values[0].memory.name in AS_FEEDBACK]
)


@every
def test_one_message(made: Recipe) -> None:
    for size, density in product((1, 2, 7, 1000), (1e-6, 0.1, 1.0)):
        compressor = Compressor(made)
        gradient = random_vector(size)
        before = gradient.clone()
        packed = compressor.compress("all", gradient, density, Random(0))
        assert torch.equal(gradient, before), "the gradient was changed"
        assert packed.size == size
        assert selectors.get(made.selector.name).takes_density <= packed.count <= size
        sparse = decode(packed.payload, size)
        assert sparse.size == size
        assert sparse.values.dtype == torch.float32
        assert sparse.values.shape == (sparse.count,)
        assert sparse.count in (packed.count, size)
        length = predicted(made, packed, seeded=sparse.seed is not None)
        exact = made.values.name != "qsgd-elias"
        assert len(packed.payload) == length if exact else len(packed.payload) <= length
        if sparse.indices is not None:
            assert sparse.indices.dtype == torch.int64
            assert bool((sparse.indices.diff() > 0).all())
        assert received(compressor, packed).isfinite().all()


@pairs
def test_a_payload_is_as_long_as_it_says(made: Recipe) -> None:
    compressor = Compressor(made)
    payload = bytes(compressor.compress("all", random_vector(300), 0.1, Random(0)).payload)
    for other in (payload[:-1], payload + b"\0"):
        with pytest.raises(WireError):
            decode(other, 300)
    with pytest.raises(WireError, match="300 elements where 301"):
        decode(payload, 301)


SCALED = Recipe(RecipeChoice("randk", {"scale": True}), RecipeChoice("fp32"), RecipeChoice("none"))


@pytest.mark.parametrize(
    "made", [*(p for p in ALL if p.values[0].memory.name in ("none", "feedback")), SCALED]
)
def test_what_a_message_lacks_is_weighed_by_the_values_that_are_read(made: Recipe) -> None:
    """Also where the selector sends others than those of the vector, and says so by ``alters``."""
    for layers in (False, True):
        compressor = Compressor(replace(made, layers=layers), {"all": MODEL})
        compressor.weigh = True
        gradient = random_vector(100)
        packed = compressor.compress("all", gradient, 0.1, Random(0))
        read = received(compressor, packed)
        assert packed.sent == pytest.approx(float(read.abs().sum()), rel=1e-5)
        assert packed.held == pytest.approx(
            float((gradient - read).abs().sum()), rel=1e-4, abs=1e-4
        )


@every
def test_zeros_stay_zeros(made: Recipe) -> None:
    compressor = Compressor(made)
    for size in (1, 100):
        name = f"zeros of {size}"
        for _ in range(2):
            packed = compressor.compress(name, torch.zeros(size), 0.1, Random(0))
            assert torch.equal(received(compressor, packed, name), torch.zeros(size))


@every
def test_not_a_number_is_refused_by_name_and_leaves_no_trace(made: Recipe) -> None:
    for layers in (False, True):
        leaves_no_trace(replace(made, layers=layers))


def leaves_no_trace(made: Recipe) -> None:
    parts = {"all": MODEL}
    one, other, rng = Compressor(made, parts), Compressor(made, parts), Random(3)
    assert messages(one, rng, [1, 2]) == messages(other, Random(3), [1, 2])
    before = rng.getstate()
    for bad in (float("nan"), float("inf"), float("-inf")):
        gradient = random_vector(100)
        gradient[55] = bad
        with pytest.raises(GradientError, match=r"'conv\.bias'.*element 5 "):
            one.compress("all", gradient, 0.1, rng)
    assert rng.getstate() == before
    assert messages(one, Random(9), [3, 4]) == messages(other, Random(9), [3, 4])


@pairs
def test_strided_input(made: Recipe) -> None:
    strided = random_vector(200)[::2]
    assert not strided.is_contiguous()
    one, other = (
        bytes(Compressor(made).compress("all", flat, 0.1, Random(0)).payload)
        for flat in (strided, strided.clone())
    )
    assert one == other


@every
def test_same_seed_same_bytes(made: Recipe) -> None:
    rngs = Random(5), Random(5)
    one, other = (
        messages(Compressor(made, {"all": LARGE}), rng, range(4), LARGE.size) for rng in rngs
    )
    assert one == other
    assert rngs[0].getstate() == rngs[1].getstate()


@every
def test_a_checkpoint_continues_identically(made: Recipe) -> None:
    for layers in (False, True):
        continues_identically(replace(made, layers=layers))


def continues_identically(made: Recipe) -> None:
    straight, rng = Compressor(made, {"all": LARGE}), Random(5)
    messages(straight, rng, range(3), LARGE.size)
    saved, place = through_a_file(straight.state()), rng.getstate()
    expected = messages(straight, rng, range(3, 6), LARGE.size)
    after, again = Compressor(made, {"all": LARGE}), Random()
    after.load(saved)
    again.setstate(place)
    assert messages(after, again, range(3, 6), LARGE.size) == expected


TWO = {
    "first": Layout.of([("conv.weight", (10, 5)), ("conv.bias", (10,))]),
    "second": Layout.of([("head.weight", (4, 10))]),
}


@remembering
def test_what_is_remembered_survives_other_buckets(made: Recipe) -> None:
    one = Compressor(made, {"all": MODEL})
    messages(one, Random(1), range(3))
    layered = replace(made, layers=True)
    whole: dict[str, torch.Tensor] = one.state()["memory"]
    assert {name.split("/")[0] for name in whole} == {part.name for part in MODEL}
    for other in (Compressor(made, TWO), Compressor(layered, {"all": MODEL})):
        other.load(through_a_file(one.state()))
        same_memory(other, whole)
        back = Compressor(made, {"all": MODEL})
        back.load(through_a_file(other.state()))
        same_memory(back, whole)


def same_memory(compressor: Compressor, expected: dict[str, torch.Tensor]) -> None:
    held = compressor.state()["memory"]
    assert held.keys() == expected.keys()
    for name, vector in held.items():
        assert torch.equal(vector, expected[name]), name


@feedback
@pytest.mark.parametrize("layout", [MODEL, LARGE], ids=["exact", "estimated"])
def test_feedback_loses_nothing(made: Recipe, layout: Layout) -> None:
    """Σ sent + residual = Σ gradients, up to the rounding of float32 at every addition.

    The larger one is long enough for selectors that estimate to do so.
    """
    size = layout.size
    kind = made.memory.name
    made = replace(made, memory=RecipeChoice(kind, AS_FEEDBACK[kind]))
    compressor, rng = Compressor(made, {"all": layout}), Random(2)
    sent, whole, largest = torch.zeros(3, size).double()
    steps = [0.3, 0.01, 1.0, 0.1, 0.05, 0.5, 0.02, 0.1]
    for step, density in enumerate(steps):
        flat = random_vector(size, step)
        read = received(compressor, compressor.compress("all", flat, density, rng)).double()
        sent += read
        whole += flat
        largest = torch.maximum(largest, torch.maximum(read.abs(), (whole - sent).abs() + 10))
    held = compressor.state()["memory"]
    name = "{}" if kind == "feedback" else "{}/residual"
    residual = torch.cat([held[name.format(part.name)].flatten() for part in layout])
    off = (sent + residual - whole).abs()
    assert bool((off <= len(steps) * 2.0**-23 * largest).all()), float(off.max())


@pytest.mark.parametrize("selector", selectors.names())
@pytest.mark.parametrize("density", [0.0, -0.1, 1.01, float("nan"), float("inf")])
def test_density_outside_its_range(selector: str, density: float) -> None:
    with pytest.raises(InputError, match=r"outside \(0, 1\]"):
        Compressor(recipe(selector, "fp32", "none")).compress(
            "all", torch.ones(3), density, Random(0)
        )


def test_a_density_for_each_parameter() -> None:
    made = replace(recipe("topk", "fp32", "feedback"), layers=True)
    compressor = Compressor(made, {"all": MODEL})
    packed = compressor.compress("all", random_vector(100), [0.1, 1.0, 0.5], Random(0))
    assert packed.count == 5 + 10 + 20
    with pytest.raises(InputError, match="2 densities for 3 parameters"):
        compressor.compress("all", random_vector(100), [0.1, 1.0], Random(0))


@pairs
def test_only_flat_float32(made: Recipe) -> None:
    for bad in (torch.ones(2, 2), torch.ones(3, dtype=torch.float64)):
        with pytest.raises(GradientError, match=r"'all'.*flat float32"):
            Compressor(made).compress("all", bad, 0.5, Random(0))


@pairs
def test_a_message_for_each_parameter_says_the_same_to_everybody(made: Recipe) -> None:
    made = replace(made, layers=True)
    sender, receiver = Compressor(made, {"all": MODEL}), Compressor(made, {"all": MODEL})
    packed = sender.compress("all", random_vector(100), 0.1, Random(0))
    assert packed.size == 100
    assert torch.equal(received(sender, packed), received(receiver, packed))
    out = torch.zeros(99)
    with pytest.raises(WireError, match="100 elements, not 99"):
        sender.decompress("all", packed.payload, out)


def test_selectors_say_whether_a_density_means_anything_to_them() -> None:
    vector = random_vector(2000)
    for name in selectors:
        counts = {
            Compressor(recipe(name, "fp32", "none")).compress("all", vector, d, Random(0)).count
            for d in (0.01, 0.5)
        }
        assert (len(counts) == 2) == selectors.get(name).takes_density, name
