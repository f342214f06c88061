"""What every controller must hold to, and how their options are refused."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from testbed.control.base import (
    LEVELS,
    Controller,
    LayerController,
    Observation,
    controller_seed,
    controllers,
)
from testbed.errors import InputError

names = pytest.mark.parametrize("name", controllers.names())


LAYERS = {"first.weight": 900.0, "first.bias": 30.0, "last.weight": 70.0}
"""Elements by name."""


def observation(step: int, rng: Random, density: float) -> Observation:
    return Observation(
        step=step,
        epoch=step // 10,
        delay_s=0.1 + rng.random(),
        accuracy=rng.randrange(33) / 32,
        bytes_sent=1000 + rng.randrange(1000),
        density=density,
        link_rate_bits=None if step % 3 else 1e8,
        step_s=None if step % 5 else 0.2 + rng.random(),
        bytes_received=2000 + rng.randrange(1000),
        learning_rate=0.1 * 0.9 ** (step // 50),
        held=rng.random(),
        sent=rng.random(),
        layers={name: [many, 10.0 ** rng.uniform(-2, 2)] for name, many in LAYERS.items()},
        buckets={
            name: {**bucket(many, rng), "bucket": float(number)}
            for number, (name, many) in enumerate(LAYERS.items())
        },
        curves={name: [rng.random(), *(1 - k**0.5 for k in LEVELS)] for name in LAYERS},
    )


def bucket(many: float, rng: Random) -> dict[str, float]:
    times = {
        name: rng.random() for name in ("start_s", "left_s", "compress_s", "delay_s", "send_s")
    }
    sent, up, down = rng.randint(1, int(many)), 100.0 + 8 * rng.random() * many, 4 * many
    return {"elements": many, "sent": float(sent), "bytes_up": up, "bytes_down": down, **times}


def drive(controller: Controller, rng: Random, steps: range) -> list[float]:
    densities = []
    for step in steps:
        densities.append(controller.density())
        controller.observe(observation(step, rng, densities[-1]))
    return densities


@names
def test_same_seed_same_densities_in_range(name: str) -> None:
    first, second = (drive(controllers.get(name)(seed=3), Random(1), range(200)) for _ in range(2))
    assert first == second
    assert all(0 < density <= 1 for density in first)


@names
def test_densities_of_layers(name: str) -> None:
    """Each in (0, 1]; together, by elements, what ``density()`` says; for any name, seen or not."""
    controller = controllers.get(name)(seed=3)
    if not isinstance(controller, LayerController):
        return
    for step in range(200):
        controller.observe(observation(step, Random(step), controller.density()))
        each = controller.densities([*LAYERS, "never seen"])
        assert len(each) == 4
        assert all(0 < density <= 1 for density in each)
        weighted = sum(k * many for k, many in zip(each, LAYERS.values(), strict=False))
        assert controller.density() == pytest.approx(weighted / sum(LAYERS.values()))


@names
def test_what_is_watched_is_known(name: str) -> None:
    assert controllers.get(name)(seed=0).watches <= {
        "memory",
        "layers",
        "buckets",
        "curves",
    }


@names
@pytest.mark.parametrize("until", [0, 5, 60])
def test_state_goes_through_json_and_continues_identically(name: str, until: int) -> None:
    rng = Random(2)
    straight = controllers.get(name)(seed=7)
    drive(straight, rng, range(until))
    saved = json.dumps(straight.state(), allow_nan=False)
    rest = Random(3)
    expected = drive(straight, rest, range(until, until + 120))
    resumed = controllers.get(name)(seed=99)
    resumed.load(json.loads(saved))
    assert drive(resumed, Random(3), range(until, until + 120)) == expected


@names
def test_unknown_option(name: str) -> None:
    with pytest.raises(
        InputError, match=r"unknown option 'bogus'.*Options and their defaults: "
    ) as got:
        controllers.get(name)(seed=0, bogus=1)
    assert got.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("fixed", {"density": 0.0}, "density: .*greater than 0, got 0.0"),
        ("fixed", {"density": 1.5}, "density: .*less than or equal to 1, got 1.5"),
        ("fixed", {"density": float("nan")}, "density: .*got nan"),
        ("fixed", {"density": "0.1"}, "density: .*valid number, got '0.1'"),
        ("fixed", {"density": True}, "density: .*valid number, got True"),
        ("adatopk", {"window": 0}, "window: .*greater than or equal to 1, got 0"),
        ("adatopk", {"window": 2.5}, "window: .*valid integer, got 2.5"),
        ("adatopk", {"rho": 1.1}, "rho: .*less than or equal to 1"),
        ("adatopk", {"alpha": -1.0}, "alpha: .*greater than or equal to 0"),
        ("adatopk", {"trend": "mean"}, "trend: .*'telescoped' or 'slope'"),
        ("adatopk", {"k_dec": "k_mid"}, "k_dec: "),
        ("adatopk", {"k_min": 0.5}, "k_min 0.5 is above k_max 0.29"),
        ("adatopk", {"initial_k": 0.5}, "initial_k 0.5 is outside"),
        ("adatopk", {"rho": 2.0, "bogus": 1}, "rho: .*; unknown option 'bogus'"),
    ],
)  # fmt: skip
def test_wrong_options(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"controller '{name}': {sentence}"):
        controllers.get(name)(seed=0, **options)


def test_whole_numbers_are_numbers() -> None:
    assert controllers.get("fixed")(seed=0, density=1).density() == 1.0


def test_seeds_differ_by_rank_and_run_and_stay_what_they_are() -> None:
    seeds = {controller_seed(seed, rank) for seed in range(20) for rank in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert controller_seed(1, 0) == 3819197318172881399, "recorded runs would no longer replay"
