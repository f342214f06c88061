"""DGC's momentum correction against its four lines, and what it shares with error feedback."""

from __future__ import annotations

from random import Random

import pytest
import torch
from contract_rig import HALVES, random_vector, through_a_file
from contract_rig import SMALL as MODEL

from testbed.compress.base import Recipe, RecipeChoice, Sparse
from testbed.compress.compressor import Compressor
from testbed.compress.layout import Layout
from testbed.compress.memory import ErrorFeedback, MomentumCorrection
from testbed.compress.selectors.topk import TopK
from testbed.errors import GradientError, InputError

torch.set_num_threads(1)
RECIPE = Recipe(RecipeChoice("topk"), memory=RecipeChoice("dgc"))


def held(memory: MomentumCorrection, vector: str) -> torch.Tensor:
    return memory.state()[f"w/{vector}"]


def test_two_steps_by_hand() -> None:
    memory = MomentumCorrection(Layout.whole("w", 3), momentum=0.5)
    first = memory.accumulate(torch.tensor([4.0, -1.0, 2.0]))
    assert first.flat.tolist() == [4.0, -1.0, 2.0]
    assert (first.sum_abs, first.max_abs) == (7.0, 4.0)
    memory.update(first, Sparse(3, torch.tensor([0]), torch.tensor([4.0])))
    assert held(memory, "velocity").tolist() == [0.0, -1.0, 2.0]
    assert held(memory, "residual").tolist() == [0.0, -1.0, 2.0]
    second = memory.accumulate(torch.tensor([1.0, -1.0, 1.0]))  # u = 1, -1.5, 2
    assert second.flat.tolist() == [1.0, -2.5, 4.0]
    memory.update(second, Sparse(3, torch.tensor([2]), torch.tensor([4.0])))
    assert held(memory, "velocity").tolist() == [1.0, -1.5, 0.0]
    assert held(memory, "residual").tolist() == [1.0, -2.5, 0.0]


@pytest.mark.parametrize("masking", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_random_steps_against_the_plain_rule(momentum: float, masking: bool) -> None:
    memory = MomentumCorrection(Layout.whole("w", 300), momentum=momentum, masking=masking)
    u, v = torch.zeros(300).double(), torch.zeros(300).double()
    for step, density in enumerate([0.1, 0.01, 0.5, 0.003, 0.2, 0.1]):
        g = random_vector(300, step)
        u = momentum * u + g
        v = v + u
        given = memory.accumulate(g)
        assert torch.allclose(given.flat.double(), v, rtol=1e-5, atol=1e-5)
        assert given.sum_abs == pytest.approx(float(given.flat.double().abs().sum()), rel=1e-12)
        assert given.max_abs == float(given.flat.abs().max())
        sent = TopK().select(given, density, Random(0))
        memory.update(given, sent)
        v[sent.indices] = 0.0
        if masking:
            u[sent.indices] = 0.0
        assert torch.allclose(held(memory, "velocity").double(), u, rtol=1e-5, atol=1e-5)
        assert torch.allclose(held(memory, "residual").double(), v, rtol=1e-5, atol=1e-5)


def test_without_momentum_it_is_error_feedback() -> None:
    with_, without = (
        MomentumCorrection(Layout.whole("w", 500), momentum=0.0),
        ErrorFeedback(Layout.whole("w", 500)),
    )
    for step in range(8):
        one, other = (memory.accumulate(random_vector(500, step)) for memory in (with_, without))
        assert torch.equal(one.flat, other.flat)
        assert (one.sum_abs, one.max_abs) == (other.sum_abs, other.max_abs)
        sent = TopK().select(one, 0.05, Random(0))
        rounded = Sparse(500, sent.indices, sent.values.bfloat16().float())
        for memory, given in ((with_, one), (without, other)):
            memory.update(given, rounded)
        assert torch.equal(held(with_, "residual"), without.state()["w"])


def test_all_elements_sent_exactly_are_plain_momentum() -> None:
    memory, plain = MomentumCorrection(Layout.whole("w", 50)), torch.zeros(50)
    for step in range(5):
        given = memory.accumulate(random_vector(50, step))
        plain = 0.9 * plain + random_vector(50, step)
        assert torch.allclose(given.flat, plain, atol=1e-6)
        memory.update(given, Sparse(50, None, given.flat.clone()))
        assert not held(memory, "residual").any()


def test_what_was_sent_inexactly_stays_in_part_and_is_masked() -> None:
    memory = MomentumCorrection(Layout.whole("w", 2))
    given = memory.accumulate(torch.tensor([3.0, -1.0]))
    memory.update(given, Sparse(2, torch.tensor([0]), torch.tensor([2.0])))
    assert held(memory, "residual").tolist() == [1.0, -1.0]
    assert held(memory, "velocity").tolist() == [0.0, -1.0]


def test_four_buffers_for_good() -> None:
    memory, places = MomentumCorrection(Layout.whole("w", 8)), set()
    for _ in range(6):
        given = memory.accumulate(torch.ones(8))
        places.add(given.flat.data_ptr())
        memory.update(given, Sparse(8, torch.tensor([1]), given.flat[[1]]))
    assert len(places) == 2
    assert held(memory, "velocity").data_ptr() not in places


def test_a_gradient_that_is_refused_leaves_no_trace() -> None:
    one, other = (Compressor(RECIPE, {"all": MODEL}) for _ in range(2))
    for compressor in (one, other):
        compressor.compress("all", random_vector(40, 1), 0.1, Random(0))
    bad = random_vector(40, 2)
    bad[21] = float("nan")
    with pytest.raises(GradientError, match=r"'conv\.bias'.*element 1 "):
        one.compress("all", bad, 0.1, Random(0))
    for step in range(3, 6):
        expected = other.compress("all", random_vector(40, step), 0.1, Random(0)).payload
        assert one.compress("all", random_vector(40, step), 0.1, Random(0)).payload == expected


def test_state_has_both_vectors_of_every_parameter() -> None:
    compressor = Compressor(RECIPE, {"all": MODEL})
    compressor.compress("all", torch.arange(40.0), 0.05, Random(0))
    memory = compressor.state()["memory"]
    assert {name: tuple(part.shape) for name, part in memory.items()} == {
        f"{part.name}/{vector}": part.shape for part in MODEL for vector in ("velocity", "residual")
    }
    for vector in ("velocity", "residual"):  # the last two were sent
        assert memory[f"conv.bias/{vector}"].tolist() == [20.0, 21.0, 22.0, 23.0]
        assert memory[f"head.weight/{vector}"][1, -3:].tolist() == [37.0, 0.0, 0.0]


def test_checkpoint_continues_identically_in_other_buckets() -> None:
    whole = Compressor(RECIPE, {"all": MODEL})
    for step in range(3):
        whole.compress("all", random_vector(40, step), 0.1, Random(0))
    saved = through_a_file(whole.state())
    parts = Compressor(RECIPE, HALVES)
    parts.load(saved)
    for name, vector in parts.state()["memory"].items():
        assert torch.equal(vector, saved["memory"][name])
    again = Compressor(RECIPE, {"all": MODEL})
    again.load(through_a_file(parts.state()))
    for step in range(3, 6):
        expected = whole.compress("all", random_vector(40, step), 0.02, Random(0)).payload
        assert again.compress("all", random_vector(40, step), 0.02, Random(0)).payload == expected


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_momentum_outside_its_range(momentum: float) -> None:
    with pytest.raises(InputError, match=f"momentum: .*got {momentum}"):
        MomentumCorrection(Layout.whole("w", 1), momentum=momentum)
