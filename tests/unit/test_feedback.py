"""Error feedback: buffers, names, checkpoints, and what outlives a change of buckets."""

from __future__ import annotations

from random import Random

import pytest
import torch
from contract_rig import HALVES, through_a_file
from contract_rig import SMALL as MODEL

from testbed.compress.base import Recipe, RecipeChoice, Sparse
from testbed.compress.compressor import Compressor
from testbed.compress.layout import Layout
from testbed.compress.memory import ErrorFeedback
from testbed.errors import GradientError, InputError

torch.set_num_threads(1)


def vector(size: int, seed: int) -> torch.Tensor:
    """Whole numbers, so that sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-50, 50, (size,), generator=generator).float()


def remembered(compressor: Compressor) -> dict[str, torch.Tensor]:
    held: dict[str, torch.Tensor] = compressor.state()["memory"]
    return held


def test_two_steps_by_hand() -> None:
    memory = ErrorFeedback(Layout.whole("w", 3))
    first = memory.accumulate(torch.tensor([3.0, -1.0, 2.0]))
    assert first.flat.tolist() == [3.0, -1.0, 2.0]
    assert (first.sum_abs, first.max_abs) == (6.0, 3.0)
    memory.update(first, Sparse(3, torch.tensor([0]), torch.tensor([3.0])))
    second = memory.accumulate(torch.tensor([1.0, -1.0, 0.5]))
    assert second.flat.tolist() == [1.0, -2.0, 2.5]
    memory.update(second, Sparse(3, torch.tensor([2]), torch.tensor([2.0])))
    assert memory.state()["w"].tolist() == [1.0, -2.0, 0.5]


def test_what_was_sent_inexactly_stays_in_part() -> None:
    memory = ErrorFeedback(Layout.whole("w", 2))
    given = memory.accumulate(torch.tensor([3.0, -1.0]))
    memory.update(given, Sparse(2, None, torch.tensor([2.0, -2.0])))
    assert memory.state()["w"].tolist() == [1.0, 1.0]


def test_two_buffers_for_good() -> None:
    memory = ErrorFeedback(Layout.whole("w", 8))
    places = set()
    for _ in range(6):
        given = memory.accumulate(torch.ones(8))
        places.add(given.flat.data_ptr())
        memory.update(given, Sparse(8, torch.tensor([1]), given.flat[[1]]))
    assert len(places) == 2


def test_a_gradient_that_is_forgotten_leaves_no_trace() -> None:
    memory = ErrorFeedback(Layout.whole("w", 2))
    given = memory.accumulate(torch.tensor([3.0, 1.0]))
    memory.update(given, Sparse(2, torch.tensor([0]), torch.tensor([3.0])))
    memory.accumulate(torch.tensor([float("nan"), 5.0]))
    assert memory.accumulate(torch.zeros(2)).flat.tolist() == [0.0, 1.0]


def test_residuals_are_kept_by_the_names_and_shapes_of_parameters() -> None:
    compressor = Compressor.named("topk", "feedback", {"all": MODEL})
    compressor.compress("all", torch.arange(40.0), 0.05, Random(0))
    held = remembered(compressor)
    assert {name: tuple(part.shape) for name, part in held.items()} == {
        "conv.weight": (4, 5), "conv.bias": (4,), "head.weight": (2, 8),
    }  # fmt: skip
    assert held["conv.bias"].tolist() == [20.0, 21.0, 22.0, 23.0]
    assert held["head.weight"][1, -3:].tolist() == [37.0, 0.0, 0.0]


def test_checkpoint_continues_identically() -> None:
    straight, before = Compressor.named("topk", "feedback"), Compressor.named("topk", "feedback")
    for step in range(3):
        straight.compress("w", vector(200, step), 0.1, Random(0))
        before.compress("w", vector(200, step), 0.1, Random(0))
    saved = before.state()
    before.compress("w", vector(200, 9), 0.1, Random(0))  # must not reach what was saved
    after = Compressor.named("topk", "feedback")
    after.load(through_a_file(saved))
    for step in range(3, 6):
        expected = straight.compress("w", vector(200, step), 0.02, Random(0)).payload
        assert after.compress("w", vector(200, step), 0.02, Random(0)).payload == expected


def test_what_no_bucket_has_taken_yet_is_not_lost() -> None:
    before = Compressor.named("topk", "feedback")
    for name in ("a", "b"):
        before.compress(name, vector(20, ord(name)), 0.1, Random(0))
    after = Compressor.named("topk", "feedback")
    after.load(before.state())
    after.compress("a", torch.zeros(20), 1.0, Random(0))
    held = remembered(after)
    assert torch.equal(held["a"], torch.zeros(20))
    assert torch.equal(held["b"], remembered(before)["b"])


@pytest.mark.parametrize("layers", [False, True])
def test_other_buckets_take_over_by_parameter(layers: bool) -> None:
    recipe = Recipe(RecipeChoice("topk"), memory=RecipeChoice("feedback"))
    whole = Compressor(recipe, {"all": MODEL})
    whole.compress("all", vector(40, 1), 0.1, Random(0))
    parts = Compressor(
        Recipe(RecipeChoice("topk"), memory=RecipeChoice("feedback"), layers=layers), HALVES
    )
    parts.load(through_a_file(whole.state()))
    for name, held in remembered(parts).items():
        assert torch.equal(held, remembered(whole)[name])
    again = Compressor(recipe, {"all": MODEL})
    again.load(parts.state())
    next_ = vector(40, 2)
    assert (
        again.compress("all", next_, 0.1, Random(0)).payload
        == whole.compress("all", next_, 0.1, Random(0)).payload
    )


def test_a_small_parameter_sends_what_it_held_when_it_was_part_of_the_whole() -> None:
    whole = Compressor.named("topk", "feedback", {"all": MODEL})
    whole.compress("all", vector(40, 1), 0.1, Random(0))
    left = remembered(whole)["conv.bias"].clone()
    recipe = Recipe(
        RecipeChoice("topk"), memory=RecipeChoice("feedback"), layers=True, dense_below=10
    )
    layered = Compressor(recipe, {"all": MODEL})
    layered.load(whole.state())
    packed = layered.compress("all", torch.zeros(40), 0.1, Random(0))
    out = torch.empty(40)
    layered.decompress("all", packed.payload, out)
    assert torch.equal(out[20:24], left)
    assert not remembered(layered)["conv.bias"].any()
    assert packed.count == 2 + 4 + 2


def test_everything_sent_leaves_nothing() -> None:
    compressor = Compressor.named("topk", "feedback")
    compressor.compress("w", torch.tensor([3.0, 1.0]), 0.5, Random(0))
    packed = compressor.compress("w", torch.tensor([0.0, 1.0]), 1.0, Random(0))
    out = torch.empty(2)
    compressor.decompress("w", packed.payload, out)
    assert out.tolist() == [0.0, 2.0]
    assert remembered(compressor)["w"].tolist() == [0.0, 0.0]


def test_a_bucket_that_changes_size() -> None:
    compressor = Compressor.named("topk", "feedback")
    compressor.compress("w", torch.ones(3), 1.0, Random(0))
    with pytest.raises(GradientError, match="'w' had 3 elements and now has 4"):
        compressor.compress("w", torch.ones(4), 1.0, Random(0))


def test_a_parameter_that_changed_its_size_since_the_checkpoint() -> None:
    compressor = Compressor.named("topk", "feedback", {"all": Layout.whole("w", 4)})
    with pytest.raises(InputError, match="'w' has 4 elements, and 3 of it were remembered"):
        compressor.load({"kind": "feedback", "memory": {"w": torch.ones(3)}, "learnt": []})


def test_a_checkpoint_that_is_refused_changes_nothing() -> None:
    layouts = {"one": Layout.whole("v", 3), "other": Layout.whole("w", 4)}
    compressor = Compressor.named("topk", "feedback", layouts)
    for name, size in (("one", 3), ("other", 4)):
        compressor.compress(name, vector(size, 1), 0.1, Random(0))
    before = remembered(compressor)
    wrong = {"v": torch.zeros(3), "w": torch.ones(3)}
    with pytest.raises(InputError, match="'w' has 4 elements"):
        compressor.load({"kind": "feedback", "memory": wrong, "learnt": []})
    after = remembered(compressor)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_another_memory_takes_no_residuals() -> None:
    sender = Compressor.named("topk", "feedback")
    sender.compress("w", vector(20, 1), 0.1, Random(0))
    with pytest.raises(InputError, match=r"'none' cannot take over .* 'feedback' holds of w"):
        Compressor.named("topk", "none").load(sender.state())
