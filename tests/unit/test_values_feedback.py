"""Every value coding on its way through a compressor: what was not sent is remembered."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from value_cases import CASES, MIXED, SHAPED, Case, vectors

from testbed.compress.base import Recipe, RecipeChoice
from testbed.compress.compressor import Compressor
from testbed.compress.payload import HEADER_BYTES, decode
from testbed.compress.values.floats import Fp32
from testbed.errors import InputError

torch.set_num_threads(1)
every = pytest.mark.parametrize("case", [*CASES, *SHAPED], ids=str)
PARTLY = [case for case in [*CASES, *SHAPED] if case.name != "lowrank"]
"""Codings that write chosen elements, too."""
PLAIN = Case("fp32", Fp32)
STEPS = 6


def compressor(case: Case, selector: str = "dense", *, scale: bool = False) -> Compressor:
    options = {"scale": True} if scale and selector == "randk" else {}
    made = Recipe(
        RecipeChoice(selector, options),
        RecipeChoice(case.name, case.options),
        RecipeChoice("feedback"),
    )
    return Compressor(made, {"all": MIXED})


def gradient(step: int) -> torch.Tensor:
    return torch.randn(MIXED.size, generator=torch.Generator().manual_seed(step))


def run(held: Compressor, rng: Random, steps: range, density: float = 1.0) -> list[bytes]:
    return [bytes(held.compress("all", gradient(step), density, rng).payload) for step in steps]


@pytest.mark.parametrize(
    ("case", "selector"),
    [*((case, "dense") for case in [*CASES, *SHAPED]), *((case, "topk") for case in PARTLY)],
    ids=str,
)
def test_what_was_sent_and_what_is_left_are_all(case: Case, selector: str) -> None:
    held, rng = compressor(case, selector), Random(0)
    density = 1.0 if selector == "dense" else 0.1
    sent, given, most = (np.zeros(MIXED.size) for _ in range(3))
    for step in range(STEPS):
        given += gradient(step).double().numpy()
        packed = held.compress("all", gradient(step), density, rng)
        read = decode(bytes(packed.payload), MIXED.size)
        place = slice(None) if read.indices is None else read.indices.numpy()
        sent[place] += read.values.double().numpy()
        most = np.maximum(most, np.abs(sent))
    state = held.state()["memory"]
    left = np.concatenate([state[part.name].flatten().double().numpy() for part in MIXED])
    assert np.abs(left).max() > 0
    assert (np.abs(sent + left - given) <= 1e-6 * STEPS * (1 + most + np.abs(left))).all()


@pytest.mark.parametrize(
    ("case", "selector"),
    [
        *((case, "dense") for case in [*CASES, *SHAPED, PLAIN]),
        *((case, selector) for case in [*PARTLY, PLAIN] for selector in ("topk", "randk")),
    ],
    ids=str,
)
def test_what_is_held_back_is_all_that_is_remembered(case: Case, selector: str) -> None:
    """Rounding, too. Scaled elements at random are sent n/k times as large."""
    held, rng = compressor(case, selector, scale=True), Random(0)
    held.weigh = True
    for step in range(STEPS):
        packed = held.compress("all", gradient(step), 1.0 if selector == "dense" else 0.1, rng)
        state = held.state()["memory"]
        left = sum(float(state[part.name].double().abs().sum()) for part in MIXED)
        assert packed.held == pytest.approx(left, rel=1e-4, abs=1e-3)
        read = decode(bytes(packed.payload), MIXED.size).values
        assert packed.sent == pytest.approx(float(read.double().abs().sum()), rel=1e-5)


@every
def test_payloads_are_as_long_as_sections_are(case: Case) -> None:
    (payload,) = run(compressor(case), Random(0), range(1))
    assert len(payload) == HEADER_BYTES + case.make(MIXED.size).section_bytes(MIXED.size)


@every
def test_a_seed_and_a_checkpoint_decide(case: Case) -> None:
    straight = run(compressor(case), Random(3), range(STEPS))
    assert straight == run(compressor(case), Random(3), range(STEPS))
    before, rng = compressor(case), Random(3)
    assert run(before, rng, range(3)) == straight[:3]
    saved = before.state()
    run(before, Random(9), range(7, 9))  # must not reach what was saved
    after = compressor(case)
    after.load(saved)
    assert run(after, rng, range(3, STEPS)) == straight[3:]


@every
def test_extremes_leave_residuals_finite(case: Case) -> None:
    for kind in ("huge", "denormal", "all zero", "all equal"):
        held, rng = compressor(case), Random(0)
        flat = torch.from_numpy(vectors(MIXED.size)[kind] * np.float32(0.1))
        for _ in range(3):
            held.compress("all", flat, 1.0, rng)
        for residual in held.state()["memory"].values():
            assert residual.isfinite().all(), kind


def test_saturation_is_a_loss_that_is_remembered() -> None:
    for name in ("fp16", "bf16"):
        held = Compressor(Recipe(values=RecipeChoice(name), memory=RecipeChoice("feedback")))
        flat = torch.tensor([1e6, 1.0])
        limit = {"fp16": 65504.0, "bf16": float(torch.tensor(1e6).bfloat16())}[name]
        payload = held.compress("w", flat, 1.0, Random(0)).payload
        assert decode(payload, 2).values.tolist() == [limit, 1.0]
        assert held.state()["memory"]["w"].tolist() == [1e6 - limit, 0.0]


@pytest.mark.parametrize("case", SHAPED, ids=str)
def test_each_parameter_by_itself(case: Case) -> None:
    made = Recipe(
        RecipeChoice("dense"),
        RecipeChoice(case.name, case.options),
        RecipeChoice("feedback"),
        layers=True,
    )
    held, out = Compressor(made, {"all": MIXED}), torch.empty(MIXED.size)
    whole, other = compressor(case), torch.empty(MIXED.size)
    held.decompress("all", held.compress("all", gradient(0), 1.0, Random(0)).payload, out)
    whole.decompress("all", whole.compress("all", gradient(0), 1.0, Random(0)).payload, other)
    if case.name == "onebit":
        assert torch.equal(out, other)
    else:  # other numbers are drawn for the first Q
        error = [float((read - gradient(0)).square().sum()) for read in (out, other)]
        assert error[0] == pytest.approx(error[1], rel=0.05)


def test_lowrank_says_which_selector_it_needs() -> None:
    made = Recipe(RecipeChoice("topk"), RecipeChoice("lowrank"), RecipeChoice("feedback"))
    with pytest.raises(InputError, match="selector 'dense'"):
        Compressor(made, {"all": MIXED}).compress("all", gradient(0), 0.1, Random(0))


def test_lowrank_of_another_rank_begins_anew() -> None:
    options: dict[str, Any] = {"rank": 1}
    before = Compressor(Recipe(values=RecipeChoice("lowrank", options)), {"all": MIXED})
    run(before, Random(0), range(2))
    after = Compressor(Recipe(values=RecipeChoice("lowrank")), {"all": MIXED})
    after.load(before.state())
    fresh = Compressor(Recipe(values=RecipeChoice("lowrank")), {"all": MIXED})
    assert run(after, Random(1), range(2)) == run(fresh, Random(1), range(2))
