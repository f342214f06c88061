"""LAGS and L-GreCo: densities worked out by hand, and bounds that are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from layered_rig import EXPONENTS, LAYERS, LEFT_S, curve, driven, observation

from testbed.control.adalag import Lags
from testbed.control.algc import Algc
from testbed.control.base import LEVELS, LayerController
from testbed.control.cost_model import DensitySizes
from testbed.control.layerwise import Layered, error_at
from testbed.control.lgreco import Lgreco
from testbed.errors import ExperimentError, InputError

SIZES = DensitySizes(ratio=2.0)
START_S, PER_S, K = 0.002, 5e-6, 0.004
PACKING_S = {name: 1e-4 + 1e-8 * many for name, many in LAYERS.items()}


def weight(density: float) -> float:
    """Bytes of both ways for every element sent."""
    both = sum(SIZES.both(many, density) for many in LAYERS.values())
    return both / sum(max(1.0, density * many) for many in LAYERS.values())


def test_constants() -> None:
    assert Lags(seed=0).options.model_dump() == {
        "warm_up": 20, "every": 50, "k_max": 1.0, "k_min": 0.001, "initial_k": 0.05, "exposed": 0.25,
        "forward": 0.0, "backward": 0.667, "under": "remaining", "cap": None,
    }  # fmt: skip
    assert Lgreco(seed=0).options.model_dump() == {
        "warm_up": 20, "every": 100, "density": 0.01, "tolerance": 1.0, "factor": 2.0, "levels": 4,
    }  # fmt: skip
    for controller, seen in ((Lags(seed=0), {"buckets"}), (Lgreco(seed=0), {"buckets", "curves"})):
        assert isinstance(controller, LayerController)
        assert controller.watches == seen


@pytest.mark.parametrize("under", ["remaining", "next"])
def test_every_bucket_by_its_own_time(under: str) -> None:
    found = driven(Lags(seed=0, under=under, initial_k=K), 20, per_s=PER_S)
    for name, left_s in LEFT_S.items():
        time_s = min(0.1, left_s) if under == "next" else left_s
        free_s = time_s - PACKING_S[name] - START_S
        density = free_s / (PER_S * weight(K) * LAYERS[name])
        dense = free_s >= 8 * PER_S * LAYERS[name]
        expected = 1.0 if dense else min(1.0, max(0.001, density))
        assert found[name] == pytest.approx(expected, rel=1e-3), name
    assert found["first"] == 0.001, "nothing is left to hide behind"
    assert found["small"] == 1.0


def test_cap_and_limits() -> None:
    found = driven(Lags(seed=0, cap=0.05, k_min=0.01, k_max=0.2), 20, per_s=PER_S)
    assert found["small"] == 0.05
    assert found["first"] == 0.01
    assert all(0.01 <= k <= 0.2 for k in found.values())


def test_bytes_that_take_nothing() -> None:
    """Dense where there is time for α, k_min where there is none."""
    found = driven(Lags(seed=0), 20, per_s=0.0, packing=(0.0, 0.0))
    assert found == {"last": 1.0, "middle": 1.0, "small": 1.0, "first": 0.001}


def test_more_bandwidth_nowhere_sparser() -> None:
    before = dict.fromkeys(LAYERS, 0.0)
    for exponent in range(20):
        found = driven(Lags(seed=0), 20, per_s=1e-3 / 2**exponent)
        assert all(found[name] >= before[name] for name in LAYERS)
        before = found
    assert set(before.values()) == {1.0, 0.001}, "the last has nothing left to hide behind"


def test_without_overlap() -> None:
    """All share what communication may take, by their elements."""
    controller = Lags(seed=0, backward=0.5, exposed=0.5)
    found = driven(
        controller, 20, names=["middle"], left_s={"middle": 0.0}, per_s=PER_S, start_s=0.0
    )
    both = SIZES.both(LAYERS["middle"], 0.05) / (0.05 * LAYERS["middle"])
    expected = (0.075 - PACKING_S["middle"]) / (PER_S * both * LAYERS["middle"])
    assert found["middle"] == pytest.approx(expected, rel=1e-3)


def errors(found: dict[str, float], energies: dict[str, float]) -> float:
    return sum(
        error_at([energies.get(n, 1.0) * s for s in curve(1.0, EXPONENTS[n])[1:]], k)
        for n, k in found.items()
    )


@pytest.mark.parametrize("tolerance", [0.9, 1.0, 1.1])
def test_fewer_bytes_at_no_more_error(tolerance: float) -> None:
    energies = {"last": 4.0, "middle": 0.5, "first": 9.0}
    uniform = dict.fromkeys(LAYERS, 0.02)
    found = driven(Lgreco(seed=0, density=0.02, tolerance=tolerance), 20, energies=energies)
    assert all(0.01 - 1e-12 <= k <= 0.04 + 1e-12 for k in found.values())
    assert errors(found, energies) <= tolerance * errors(uniform, energies) * (1 + 1e-9)
    shorter = sum(SIZES.up(LAYERS[n], k) for n, k in found.items())
    same = sum(SIZES.up(LAYERS[n], 0.02) for n in LAYERS)
    assert shorter < same * (0.95 if tolerance >= 1 else 1.5)
    assert len(set(found.values())) > 1


def test_one_density_where_nothing_is_gained() -> None:
    assert driven(Lgreco(seed=0), 20, names=["middle"]) == {"middle": 0.01}, "one layer"
    nothing = dict.fromkeys(LAYERS, 0.0)
    assert set(driven(Lgreco(seed=0), 20, energies=nothing).values()) == {0.01}, "no error"
    dense = driven(Lgreco(seed=0, density=1.0), 20)
    assert set(dense.values()) == {1.0}


@pytest.mark.parametrize(("density", "least"), [(0.0005, 2**-11), (0.0001, 0.0001)])
def test_no_layer_gets_a_density_whose_error_is_not_known(density: float, least: float) -> None:
    """At and below the last level of a curve every density leaves the same error, it would seem."""
    chosen = driven(Lgreco(seed=0, density=density, factor=8.0), 20)
    assert min(chosen.values()) >= least


def test_decisions_of_lgreco() -> None:
    controller = Lgreco(seed=0)
    changes, before = [], driven(controller, 0)
    for step in range(250):
        after = driven(controller, 1, energies={"last": 1.0 + step})
        changes += [step + 1] if after != before else []
        before = after
    assert set(changes) <= {20, 120, 220}
    assert 20 in changes


@pytest.mark.parametrize("cls", [Algc, Lags, Lgreco])
def test_a_layer_without_elements_hardly_matters_to_others(cls: Any) -> None:
    plain, other = cls(seed=0), cls(seed=0)
    for step in range(40):
        asked = dict(zip(LAYERS, plain.densities([*LAYERS]), strict=True))
        seen = observation(asked, step=step)
        plain.observe(seen)
        empty = dict.fromkeys(seen.buckets["first"], 0.0) | {"bucket": 9.0, "left_s": 0.01}
        empty |= {"delay_s": 0.002, "start_s": 0.9, "bytes_up": 40.0, "bytes_down": 40.0}
        curves = {**seen.curves, "empty": [0.0] * (1 + len(LEVELS))}
        other.observe(replace(seen, buckets={**seen.buckets, "empty": empty}, curves=curves))
    assert other.densities([*LAYERS]) == pytest.approx(plain.densities([*LAYERS]), rel=0.01)
    assert 0 < other.densities(["empty"])[0] <= 1


@pytest.mark.parametrize("cls", [Lags, Lgreco])
@pytest.mark.parametrize("until", [7, 20, 45])
def test_goes_on_from_its_state(cls: type[Layered], until: int) -> None:  # type: ignore[type-arg]
    one, other = cls(seed=0), cls(seed=9)
    driven(one, until)
    other.load(json.loads(json.dumps(one.state(), allow_nan=False)))
    assert driven(other, 120, per_s=4e-6) == driven(one, 120, per_s=4e-6)
    assert other.state() == one.state()


def test_what_they_need() -> None:
    bare = replace(observation({"last": 0.1}, step=3), buckets={})
    for cls in (Lags, Lgreco):
        with pytest.raises(ExperimentError, match=f"'{cls.name}': step 3 has no `buckets`"):
            cls(seed=0).observe(bare)
    with pytest.raises(ExperimentError, match="'lgreco': there is no `curves` entry of 'last'"):
        driven(Lgreco(seed=0), 20, curves=False)
    with pytest.raises(InputError, match=r"under: .*'remaining' or 'next'"):
        Lags(seed=0, under="all")
    with pytest.raises(InputError, match=r"factor: .*greater than 1"):
        Lgreco(seed=0, factor=1.0)
