"""What selectors and value codings have learnt, on its way to other buckets and other algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
import torch

from testbed.compress.base import Recipe, RecipeChoice
from testbed.compress.compressor import Compressor
from testbed.compress.layout import Layout
from testbed.errors import InputError
from testbed.training.ddp.bucket import CarriedState

SHAPES = {"a": (40, 50), "b": (30, 20), "c": (2000,)}


def layout(names: str) -> Layout:
    return Layout.of([(name, SHAPES[name]) for name in names])


def trained(recipe: Recipe, *buckets: str) -> Compressor:
    """Some messages of buckets that are called as their parameters are."""
    made = Compressor(recipe, {names: layout(names) for names in buckets})
    for step in range(3):
        for names in buckets:
            generator = torch.Generator().manual_seed(step)
            flat = torch.randn(layout(names).size, generator=generator)
            made.compress(names, flat, 0.01, Random(step))
    return made


def learnt(compressor: Compressor) -> dict[str, Mapping[str, Any]]:
    """By parameters."""
    return {"".join(one["parts"]): one for one in compressor.state()["learnt"]}


LAPLACE = Recipe(RecipeChoice("laplace"), memory=RecipeChoice("feedback"))
LOWRANK = Recipe(RecipeChoice("dense"), RecipeChoice("lowrank"), RecipeChoice("feedback"))


@pytest.mark.parametrize("before", ["topk", "laplace", "sidco-e", "redsync-search", "radix"])
@pytest.mark.parametrize("after", ["topk", "laplace", "sidco-gp", "redsync-search", "radix"])
def test_another_selector_takes_the_residuals_alone(before: str, after: str) -> None:
    source = trained(Recipe(RecipeChoice(before), memory=RecipeChoice("feedback")), "ab")
    made = Compressor(
        Recipe(RecipeChoice(after), memory=RecipeChoice("feedback")), {"ab": layout("ab")}
    )
    fresh = learnt(trained(made.recipe, "ab"))["ab"].keys()
    made.load(source.state())
    assert made.state()["memory"].keys() == source.state()["memory"].keys()
    assert learnt(made)["ab"].keys() == fresh
    made.compress("ab", torch.ones(layout("ab").size), 0.01, Random(0))


def test_the_same_buckets_know_what_they_knew() -> None:
    for recipe in (LAPLACE, LOWRANK):
        source = trained(recipe, "ab", "c")
        made = Compressor(recipe, {"ab": layout("ab"), "c": layout("c")})
        made.load(source.state())
        assert str(learnt(made)) == str(learnt(source))


@pytest.mark.parametrize("buckets", [("ba",), ("a", "b"), ("bac",)])
def test_matrices_are_known_by_name_in_any_bucket(buckets: tuple[str, ...]) -> None:
    source = trained(LOWRANK, "ab", "c")
    made = Compressor(LOWRANK, {names: layout(names) for names in buckets})
    made.load(source.state())
    known = {name: q for one in learnt(made).values() for name, q in one["values"].items()}
    wanted = learnt(source)["ab"]["values"]
    assert known.keys() == wanted.keys() == {"a", "b"}
    assert all(torch.equal(known[name], wanted[name]) for name in wanted)


def test_what_waits_is_kept_for_buckets_that_come_later() -> None:
    source = trained(LAPLACE, "ab")
    through = Compressor(LAPLACE)
    through.load(source.state())
    assert str(learnt(through)["ab"]) == str(learnt(source)["ab"])


def test_first_buckets_do_not_use_up_what_is_for_later_ones() -> None:
    """DistributedDataParallel begins with others than those that a checkpoint was saved of."""
    wanted = learnt(trained(LAPLACE, "ab"))["ab"]
    waiting = CarriedState("feedback")
    waiting.add({**trained(LAPLACE, "ab").state(), "reply": {}})
    first = Compressor(LAPLACE, {"a": layout("a"), "b": layout("b")})
    for names in ("a", "b"):
        first.load(waiting.take(layout(names)))
    waiting.add({**trained(LAPLACE, "a", "b").state(), "reply": {}})
    later = Compressor(LAPLACE, {"ab": layout("ab")})
    later.load(waiting.take(layout("ab")))
    assert str(learnt(later)["ab"]) == str(wanted)
    assert [one["parts"] for one in waiting.together([])["learnt"]] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (
            RecipeChoice("laplace", {"fit_every": "often"}),
            "fit_every: .*valid integer, got 'often'",
        ),
        (
            RecipeChoice("laplace", {"fit_every": float("nan")}),
            "fit_every: .*valid integer, got nan",
        ),
        (RecipeChoice("mstopk", {"passes": 2.5}), "passes: .*valid integer, got 2.5"),
        (RecipeChoice("mstopk", {"passes": True}), "passes: .*valid integer, got True"),
        (RecipeChoice("mstopk", {"passes": 0}), "passes: .*got 0"),
        (RecipeChoice("mstopk", {"passes": 10**10}), "passes: .*got 10000000000"),
        (RecipeChoice("redsync-search", {"reuse": True}), "reuse: .*valid integer, got True"),
        (RecipeChoice("redsync-search", {"reuse": 1.5}), "reuse: .*valid integer, got 1.5"),
        (RecipeChoice("threshold", {"at": 10**400}), r"at: .*valid number, got 1000+\.\.\.0+"),
        (RecipeChoice("threshold", {"at": 16**5000}), "got a number of thousands of digits"),
        (RecipeChoice("threshold", {"at": "x" * 10**6}), r"got 'x{1,40}\.\.\.x{1,40}'"),
        (RecipeChoice("threshold", {"at": 1e39}), "not a positive float32"),
        (RecipeChoice("threshold", {"at": 1e-60}), "not a positive float32"),
        (RecipeChoice("threshold", {"at": "much"}), "threshold"),
    ],
)
def test_wrong_options_are_said(choice: RecipeChoice, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Recipe(choice).check()


def test_wrong_options_of_values_and_memories_are_said() -> None:
    with pytest.raises(InputError, match="sign"):
        Recipe(values=RecipeChoice("sign", {"scale": 10**400})).check()
    with pytest.raises(InputError, match=r"masking: .*valid boolean, got 'no'"):
        Recipe(memory=RecipeChoice("dgc", {"masking": "no"})).check()
