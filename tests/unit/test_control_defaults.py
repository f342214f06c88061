"""The options of every controller where nothing is said: those of the tables in the docs, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.control.algc import ladder
from testbed.control.base import LEVELS, controllers
from testbed.control.cost_model import AlphaBeta, DensitySizes, payload

HIDING = {
    "k_max": 1.0, "k_min": 0.001, "initial_k": 0.05, "exposed": 0.25, "forward": 0.0, "backward": 0.667,
    "warm_up": 20, "every": 50,
}  # fmt: skip
DELAY = {"k_max": 0.29, "k_min": 0.001, "warm_up": 20, "window": 50, "delay": "seconds"}
AIMD = {"initial_k": 0.75, "k_max": 1.0, "k_min": 0.005, "increase": 0.001, "decrease": 0.95}
DEFAULTS: dict[str, dict[str, Any]] = {
    "accordion": {"k_high": 0.99, "k_low": 0.1, "threshold": 0.5, "every_epochs": 10},
    "adalag": {
        "k_max": 0.29, "k_min": 0.001, "initial_k": 0.1, "weight": 0.25, "bytes_take": "measured", "recent": 9,
        "swing": 1.5,
    },
    "adatopk": {
        "alpha": 3.0, "beta": 2.0, "window": 18, "k_max": 0.29, "k_min": 0.001, "rho": 0.78, "m_inc": 0.98, "m_dec": 0.97,
        "k_dec": "k_min", "decrease": "minus", "initial_k": None, "trend": "telescoped", "accuracy": "unsigned",
        "delay": "seconds", "p_inc": None, "p_dec": None, "zero_denominator": "hold",
    },
    "adatopk-eq2": {
        "alpha": 3.0, "beta": 2.0, "candidates": [0.001, 0.01, 0.05, 0.1, 0.15, 0.29], "least_accuracy": 0.0,
        "most_delay_s": None, "memory": 0.9, "explore": 0.1, "accuracy": "level",
    },
    "aimd-bdp": {**AIMD, "window_s": 5.0, "share": 0.9},
    "aimd-delay": {**AIMD, "weight": 0.1},
    "algc": {**HIDING, "threshold": True, "layerwise": True, "budget": "hidden", "residuals_every": 0},
    "dc2-da1": {**DELAY, "tolerance": 1.2, "hysteresis": 2},
    "dc2-da2": {**DELAY, "tolerance": 1.05, "factor": 0.5, "rises": 100},
    "dc2-da3": DELAY,
    "dc2-da4": {**DELAY, "levels": 5, "down_above": 2.0, "up_below": 0.5},
    "dc2-da5": {**DELAY, "levels": 5, "down_above": 0.5, "up_below": -0.5},
    "dgc-warmup": {"densities": [0.25, 0.0625, 0.015625, 0.004, 0.001]},
    "fixed": {"density": 1.0},
    "lags": {**HIDING, "under": "remaining", "cap": None},
    "lgreco": {"density": 0.01, "tolerance": 1.0, "factor": 2.0, "levels": 4, "warm_up": 20, "every": 100},
    "random-walk": {"step": 0.05, "k_max": 0.29, "k_min": 0.001, "mean": None, "spread": 2.0},
    "schedule": {"form": "linear", "from": 0.29, "to": 0.001, "steps": 200},
    "script": {"densities": [1.0]},
}  # fmt: skip
FIRST = {
    "accordion": 0.99, "adalag": 0.1, "adatopk": 0.29, "adatopk-eq2": 0.29, "aimd-bdp": 0.75, "aimd-delay": 0.75,
    "algc": 0.05, "dc2-da1": 0.29, "dc2-da2": 0.29, "dc2-da3": 0.29, "dc2-da4": 0.29, "dc2-da5": 0.29, "dgc-warmup": 0.25,
    "fixed": 1.0, "lags": 0.05, "lgreco": 0.01, "random-walk": 0.29, "schedule": 0.29, "script": 1.0,
}  # fmt: skip


def test_every_controller_is_known() -> None:
    assert sorted(controllers) == sorted(DEFAULTS) == sorted(FIRST)


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_and_the_first_density(name: str) -> None:
    made: Any = controllers.get(name)(seed=1)
    assert made.options.model_dump(by_alias=True) == DEFAULTS[name]
    assert made.density() == pytest.approx(FIRST[name])


def test_error_curves_have_a_level_for_every_factor_of_root_two_down_to_a_2048th() -> None:
    assert len(LEVELS) == 23
    assert LEVELS[:5] == (1.0, 2**-0.5, 0.5, pytest.approx(2**-1.5), 0.25)
    assert LEVELS[-1] == 1 / 2048


def test_densities_to_choose_from_are_the_limits_and_the_levels_between() -> None:
    assert ladder(0.25, 0.6) == [0.25, pytest.approx(2**-1.5), 0.5, 0.6]


def test_a_line_that_nothing_is_known_of_takes_no_time() -> None:
    assert AlphaBeta().seconds(1e6, 1e3) == 0.0
    assert AlphaBeta(3.0, 2.0).seconds(5.0) == 3.0 + 2.0 * 5.0
    assert AlphaBeta(3.0, 2.0).seconds(5.0, 4.0) == 4 * 3.0 + 2.0 * 5.0


def test_sizes_are_those_of_the_formula() -> None:
    """1000 elements, of which 125 are sent: 4 B each, and 125·(2 + log₂ 8) bits of indices."""
    sparse = 40 + 4 * 125 + 125 * 5 / 8
    assert payload(1000, 0.125) == sparse
    assert payload(1000, 1.0) == 40 + 4 * 1000  # the dense vector: no indices
    assert payload(1000, 0.5) == 40 + 4 * 500 + 1000 / 8  # 500·3 bits are more than a bitmap
    assert payload(1000, 1e-6) == pytest.approx(
        40 + 4 + (2 + 9.965784284662087) / 8
    )  # one at least
    assert DensitySizes().up(1000, 0.125) == DensitySizes().down(1000, 0.125) == sparse
    measured = DensitySizes(scale=0.5, ratio=3.0)
    assert measured.up(1000, 0.125) == 0.5 * sparse
    assert measured.down(1000, 0.125) == 1.5 * sparse
    assert measured.both(1000, 0.125) == 2 * sparse
    assert measured.fuller(1000, 0.125) == 1.5 * sparse
    assert DensitySizes(ratio=100.0).down(1000, 0.125) == 4040
    assert measured.down(1000, 1.0) == 4040
