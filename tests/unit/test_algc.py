"""ALGC's rules: what is worth compressing, and how dense; worked out on ways of known α and β."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from layered_rig import EXPONENTS, LAYERS, LEFT_S, curve, driven, observation
from ruamel.yaml import YAML

from testbed.compatibility import resolve
from testbed.compress.compressor import Compressor
from testbed.compress.layout import Layout
from testbed.control.algc import Algc
from testbed.control.base import LayerController
from testbed.control.cost_model import DensitySizes
from testbed.control.layerwise import error_at
from testbed.errors import ExperimentError, InputError
from testbed.scenario.model import Derived

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "algc.md"

SIZES = DensitySizes(ratio=2.0)
PLAIN = {"threshold": False, "initial_k": 0.002}
"""So sparse in the beginning that no bucket waits for another."""


def spent(densities: dict[str, float], first: str | None = "last") -> float:
    """Bytes of the fuller way, and of both of the bucket that leaves first."""
    return sum(
        (SIZES.both if name == first else SIZES.fuller)(LAYERS[name], k)
        for name, k in densities.items()
    )


def test_rows_and_the_examples_of_the_page() -> None:
    for name in ("algc", "lags", "lgreco"):
        row, whole = resolve(name), resolve(f"{name}-whole")
        assert (row.controller, row.buckets, row.bucket_bytes, row.overlap) == (
            name,
            "layer",
            65536,
            True,
        )
        assert (whole.controller, whole.buckets, whole.bucket_bytes, whole.overlap) == (
            name,
            "whole",
            0,
            False,
        )
        assert {row.selector, whole.selector, row.memory, whole.memory} == {"laplace", "feedback"}
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    listed = YAML(typ="safe").load(block)["algorithms"]
    found = [resolve(e if isinstance(e, str) else Derived.model_validate(e)) for e in listed]
    assert [row.options for row in found] == [
        {},
        {"threshold": False},
        {"layerwise": False},
        {},
        {"budget": 0.05},
    ]
    assert [row.overlap for row in found] == [True, True, True, False, True]


def test_constants() -> None:
    controller = Algc(seed=0)
    assert controller.options.model_dump() == {
        "warm_up": 20, "every": 50, "k_max": 1.0, "k_min": 0.001, "initial_k": 0.05, "exposed": 0.25,
        "forward": 0.0, "backward": 0.667, "threshold": True, "layerwise": True, "budget": "hidden",
        "residuals_every": 0,
    }  # fmt: skip
    assert isinstance(controller, LayerController)
    assert controller.watches == {"buckets", "curves"}
    assert controller.curve_interval == 10
    assert Algc(seed=0, layerwise=False).watches == {"buckets"}, "curves cost time"


def test_first_decision_after_twenty_steps_and_then_every_fifty() -> None:
    controller = Algc(seed=0)
    changes, before = [], driven(controller, 0)
    assert set(before.values()) == {0.05}
    assert controller.density() == 0.05
    for step in range(140):
        energies = {"last": 1.0 + step}
        after = driven(controller, 1, energies=energies, per_s=1e-6 * (1 + step))
        changes += [step + 1] if after != before else []
        before = after
    assert changes == [20, 70, 120]
    assert controller.densities(["never seen"]) == [0.05]


def test_residuals_travel_in_every_so_manieth_step() -> None:
    """All of p, so that nothing stays with the worker; densities in between are as without."""
    plain, other = Algc(seed=0), Algc(seed=0, residuals_every=8)
    for step in range(1, 70):
        before = other.densities([*LAYERS])
        assert before == ([1.0] * len(LAYERS) if step % 8 == 0 else plain.densities([*LAYERS]))
        asked = dict(zip(LAYERS, plain.densities([*LAYERS]), strict=True))
        for controller in (plain, other):
            controller.observe(observation(asked, step=step))
    assert resolve("algc-residuals").options == {"residuals_every": 50}


def test_a_worker_that_sent_its_residuals_has_none() -> None:
    row = resolve("algc-residuals")
    compressor = Compressor(row.recipe, {"all": Layout.of([("a", (30, 20)), ("b", (50,))])})
    for density, left in ((0.05, True), (1.0, False), (0.05, True)):
        compressor.compress("all", torch.randn(650), [density, density], Random(0))
        residuals = compressor.state()["memory"].values()
        assert any(bool(residual.count_nonzero()) for residual in residuals) == left


@pytest.mark.parametrize("per_s", [3e-6, 6e-6, 1.2e-5])
def test_bytes_are_those_that_hide(per_s: float) -> None:
    """B = (T − α)/β of the fuller way."""
    found = driven(Algc(seed=0, **PLAIN), 20, per_s=per_s)
    assert spent(found) == pytest.approx((LEFT_S["last"] - 0.002) / per_s, rel=1e-3)
    assert all(0.001 <= k <= 1 for k in found.values())
    forward = driven(Algc(seed=0, forward=0.5, **PLAIN), 20, per_s=per_s)
    assert spent(forward) == pytest.approx((1.5 * LEFT_S["last"] - 0.002) / per_s, rel=1e-3)


@pytest.mark.parametrize("exposed", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("layerwise", [True, False])
def test_what_is_ready_later_has_less_to_hide_behind(exposed: float, layerwise: bool) -> None:
    """Of every bucket and all after it: no more bytes than go in what is left, and a share of T after the end."""
    controller = Algc(seed=0, exposed=exposed, layerwise=layerwise, **PLAIN)
    found = driven(controller, 20, per_s=6e-6, energies={"first": 1e6})
    names = list(LAYERS)
    for number, name in enumerate(names):
        later = {one: found[one] for one in names[number:]}
        time_s = min(0.30, LEFT_S[name] + exposed * 0.30) - 0.002
        least = spent(dict.fromkeys(later, 0.001), name)
        assert spent(later, name) <= max(least, time_s / 6e-6) * (1 + 1e-6)
    if layerwise:
        dear = (
            spent({"first": found["first"]}, "first") - (min(0.30, exposed * 0.30) - 0.002) / 6e-6
        )
        assert dear == pytest.approx(0, abs=1) or found["first"] in (0.001, 1.0)


def test_bytes_without_overlap() -> None:
    """A half of a half of 0.3 s of computation. Only the first bucket does not wait: α is not known."""
    controller = Algc(seed=0, backward=0.5, exposed=0.5, **PLAIN)
    found = driven(controller, 20, left_s=dict.fromkeys(LAYERS, 0.0), per_s=4e-6)
    per_s = 4e-6 + 0.002 / SIZES.both(LAYERS["last"], 0.002)
    assert spent(found) == pytest.approx(0.075 / per_s, rel=1e-3)


@pytest.mark.parametrize("layerwise", [True, False])
def test_bytes_of_a_density(layerwise: bool) -> None:
    found = driven(Algc(seed=0, budget=0.02, layerwise=layerwise, **PLAIN), 20)
    assert spent(found, None) == pytest.approx(spent(dict.fromkeys(LAYERS, 0.02), None), rel=1e-3)
    assert layerwise or list(found.values()) == pytest.approx([0.02] * len(LAYERS), rel=1e-3)


def test_own_densities_have_less_error_than_one_for_all() -> None:
    energies = {"last": 5.0, "middle": 0.2, "first": 30.0}
    error = {}
    for layerwise in (True, False):
        controller = Algc(seed=0, budget=0.05, layerwise=layerwise, **PLAIN)
        found = driven(controller, 20, energies=energies)
        error[layerwise] = sum(
            error_at([energies.get(n, 1.0) * s for s in curve(1.0, EXPONENTS[n])[1:]], k)
            for n, k in found.items()
        )
    assert error[True] < 0.9 * error[False]


def test_the_threshold_is_at_break_even() -> None:
    """A layer is compressed iff β·(bytes saved, both ways) > a + c·n: just below and just above."""
    per_s, k = 1e-6, 0.02
    saved = SIZES.both(LAYERS["middle"], 1.0) - SIZES.both(LAYERS["middle"], k)
    for factor, dense in ((0.99, False), (1.01, True)):
        controller = Algc(seed=0, layerwise=False, budget=k)
        seconds = factor * per_s * saved
        found = driven(controller, 20, per_s=per_s, packing=(0.0, seconds / LAYERS["middle"]))
        assert (found["middle"] == 1.0) is dense


def test_small_layers_are_sent_dense_and_paid_for() -> None:
    """500 elements cost more to select from than to send; the others keep to what is left of the budget."""
    poor = {"small": 1e-3}
    found = driven(Algc(seed=0), 20, packing=(2e-2, 1e-9), per_s=3e-6, energies=poor)
    assert found["small"] == 1.0
    assert all(found[name] < 1 for name in ("last", "middle", "first"))
    assert spent(found) <= (LEFT_S["last"] - 0.002) / 3e-6 * (1 + 1e-9)
    free = driven(Algc(seed=0, **PLAIN), 20, packing=(2e-2, 1e-9), per_s=3e-6, energies=poor)
    assert free["small"] < 1.0


def test_layers_come_back_below_the_threshold() -> None:
    """Dense on a fast link, compressed again on a slow one, though nothing was compressed in between."""
    controller = Algc(seed=0)
    assert set(driven(controller, 20, per_s=1e-10).values()) == {1.0}
    found = driven(controller, 100, per_s=1e-5)
    assert found["middle"] < 0.1
    assert found["last"] < 0.2


@pytest.mark.parametrize("layerwise", [True, False])
def test_more_bandwidth_nowhere_sparser(layerwise: bool) -> None:
    before, dense = dict.fromkeys(LAYERS, 0.0), set[str]()
    for exponent in range(24):
        per_s = 1e-4 / 1.6**exponent
        found = driven(Algc(seed=0, layerwise=layerwise, **PLAIN), 20, per_s=per_s)
        assert all(found[name] >= before[name] * (1 - 1e-6) for name in LAYERS)
        now = {
            n
            for n, k in driven(Algc(seed=0, layerwise=layerwise), 20, per_s=per_s).items()
            if k == 1
        }
        assert dense <= now
        before, dense = found, now
    assert set(before.values()) == {1.0}
    assert dense == set(LAYERS)


def test_one_vector_is_a_layer() -> None:
    """The whole model, nothing hidden, one size of message: α is not known, and all of the delay is taken for bytes."""
    controller = Algc(seed=0, layerwise=False, threshold=False, backward=0.4)
    found = driven(controller, 20, names=["middle"], left_s={"middle": 0.0}, per_s=2e-6, start_s=0.0, curves=False)  # fmt: skip
    bytes_ = SIZES.both(LAYERS["middle"], found["middle"])
    assert bytes_ == pytest.approx(0.25 * 0.4 * 0.3 / 2e-6, rel=1e-3)


@pytest.mark.parametrize("until", [7, 20, 45, 70])
def test_goes_on_from_its_state(until: int) -> None:
    one, other = Algc(seed=0), Algc(seed=9)
    driven(one, until)
    other.load(json.loads(json.dumps(one.state(), allow_nan=False)))
    assert driven(other, 80, per_s=4e-6) == driven(one, 80, per_s=4e-6)
    assert other.state() == one.state()


def test_what_it_needs() -> None:
    bare = replace(observation({"last": 0.1}, step=7), buckets={})
    with pytest.raises(ExperimentError, match="'algc': step 7 has no `buckets`"):
        Algc(seed=0).observe(bare)
    with pytest.raises(ExperimentError, match="'algc': there is no `curves` entry of 'last'"):
        driven(Algc(seed=0), 20, curves=False)
    bad = replace(observation({"last": 0.1}, step=7), curves={"last": [1.0, 0.5]})
    with pytest.raises(ExperimentError, match="step 7: the error curve of 'last' is not one of 23"):
        Algc(seed=0).observe(bad)
    with pytest.raises(InputError, match=r"initial_k 0.5 is outside"):
        Algc(seed=0, k_max=0.29, initial_k=0.5)
    with pytest.raises(InputError, match="budget: "):
        Algc(seed=0, budget="most")
