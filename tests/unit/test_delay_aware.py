"""DA1 to DA5: steps worked out by hand, every constant, and limits that hold for any delays."""

from __future__ import annotations

import json
from itertools import pairwise
from math import sqrt
from statistics import fmean, pstdev
from typing import Any

import pytest
from examples_count import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testbed.compatibility import resolve
from testbed.control.base import Controller, Observation, controllers
from testbed.control.delay_aware import Delays, Gradient, Lenient, Proportional, Strict, TwoLevel
from testbed.errors import ExperimentError, InputError

FAMILY = [TwoLevel, Gradient, Proportional, Lenient, Strict]
HIGH, LOW = 0.29, 0.001

family = pytest.mark.parametrize("rule", FAMILY, ids=lambda rule: rule.name)


def seen(delay_s: float, bytes_sent: int = 1000) -> Observation:
    return Observation(0, 1, delay_s, 0.5, bytes_sent, 0.1)


def course(controller: Controller, delays: list[float]) -> list[float]:
    """Densities after each of ``delays``."""
    densities = []
    for delay_s in delays:
        controller.observe(seen(delay_s))
        densities.append(controller.density())
    return densities


@family
def test_constants_of_the_family(rule: Any) -> None:
    own = {
        TwoLevel: {"tolerance": 1.2, "hysteresis": 2},
        Gradient: {"tolerance": 1.05, "factor": 0.5, "rises": 100},
        Proportional: {},
        Lenient: {"levels": 5, "down_above": 2.0, "up_below": 0.5},
        Strict: {"levels": 5, "down_above": 0.5, "up_below": -0.5},
    }[rule]
    common = {"k_max": HIGH, "k_min": LOW, "warm_up": 20, "window": 50, "delay": "seconds"}
    assert rule(seed=0).options.model_dump() == {**common, **own}


@family
def test_rows(rule: Any) -> None:
    row = resolve(rule.name)
    assert (row.selector, row.memory, row.controller) == ("topk", "feedback", rule.name)
    assert controllers.get(rule.name) is rule
    assert "a reconstruction" in row.about


def test_smoothing_has_the_constants_of_tcp() -> None:
    delays = Delays(3)
    delays.take(2.0)
    assert (delays.before, delays.smoothed, delays.deviation) == (2.0, 2.0, 1.0)
    delays.take(4.0)  # v: 3/4·1 + 1/4·|4 − 2|; s: 7/8·2 + 1/8·4
    assert (delays.before, delays.smoothed, delays.deviation) == (2.0, 2.25, 1.25)
    delays.take(1.25)  # v: 3/4·1.25 + 1/4·|1.25 − 2.25|; s: 7/8·2.25 + 1/8·1.25
    assert (delays.before, delays.smoothed, delays.deviation) == (2.25, 2.125, 1.1875)
    delays.take(8.0)
    assert list(delays.window) == [4.0, 1.25, 8.0]
    assert (delays.newest, delays.least, delays.greatest) == (8.0, 1.25, 8.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_mean_and_deviation_of_the_window(samples: list[float]) -> None:
    delays = Delays(50)
    for sample in samples:
        delays.take(sample)
    newest = samples[-50:]
    assert delays.spread() == pytest.approx((fmean(newest), pstdev(newest)), rel=1e-9, abs=1e-6)


def test_equal_delays_deviate_by_nothing() -> None:
    delays = Delays(50)
    for _ in range(70):
        delays.take(0.1)
    assert (*delays.spread(), delays.smoothed) == (0.1, 0.0, 0.1)


@family
def test_warm_up(rule: Any) -> None:
    """Twenty steps have k_max whatever happens; the twenty-first may differ."""
    controller = rule(seed=0)
    delays = [1.0 + step % 3 for step in range(19)]
    assert course(controller, delays) == [HIGH] * 19
    assert course(controller, [50.0, 50.0])[-1] < HIGH


def test_two_levels() -> None:
    controller = TwoLevel(seed=0, warm_up=1)
    # 1.2 is not above 1.2·1; two steps in a row change the level, and one back between them starts anew.
    delays = [1.0, 1.2, 1.21, 1.0, 1.21, 1.21, 1.0, 1.3, 1.0, 1.0, 1.0]
    assert course(controller, delays) == [HIGH] * 5 + [LOW] * 4 + [HIGH] * 2


def test_hysteresis_counts_from_the_end_of_the_warm_up() -> None:
    controller = TwoLevel(seed=0, warm_up=3)
    assert course(controller, [1.0, 9.0, 9.0, 9.0]) == [HIGH, HIGH, HIGH, LOW]


def test_after_a_level_was_taken_the_other_must_be_asked_for_as_often() -> None:
    """Three in a row: slow at the 4th to 6th step, fast at the 7th to 9th."""
    rule = TwoLevel(seed=0, warm_up=1, hysteresis=3)
    delays = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    assert course(rule, delays) == [HIGH] * 5 + [LOW] * 3 + [HIGH]
    other = TwoLevel(seed=0, warm_up=1, hysteresis=3)
    course(rule, [2.0, 2.0])
    other.load(rule.state())
    assert course(other, [2.0]) == [LOW], "two of three were asked for before"


def test_least_delay_is_that_of_the_window() -> None:
    controller = TwoLevel(seed=0, warm_up=1, window=3, hysteresis=1)
    assert course(controller, [1.0, 2.0, 2.0, 2.0]) == [HIGH, LOW, LOW, HIGH]


def test_additive_and_multiplicative() -> None:
    controller = Gradient(seed=0, warm_up=1)
    step = (HIGH - LOW) / 100
    # s: 1, 1, 1.125, then 1.125 + (1.18 − 1.125)/8 = 1.131875
    assert course(controller, [1.0, 1.05, 2.0]) == pytest.approx([HIGH, HIGH, HIGH / 2])
    assert course(controller, [1.18]) == pytest.approx([HIGH / 2 + step])
    assert course(controller, [9.0]) == pytest.approx([(HIGH / 2 + step) / 2])
    assert course(Gradient(seed=0, warm_up=1), [2.0**n for n in range(12)])[-1] == LOW


def test_delay_is_compared_with_the_smoothed_one_of_before() -> None:
    """1.055 is above 1.05·1, though not above 1.05 times the s that includes it, 1.006875."""
    assert course(Gradient(seed=0, warm_up=1), [1.0, 1.055])[-1] == HIGH / 2


def test_proportional() -> None:
    controller = Proportional(seed=0, warm_up=1)
    assert course(controller, [1.0, 1.0]) == [HIGH, HIGH]
    # s = 1 + 2/8; a share of (1.25 − 1)/(3 − 1)
    assert course(controller, [3.0]) == pytest.approx([HIGH - (HIGH - LOW) * 0.125])
    # s = 1.25 + 1.75/8 = 1.46875
    assert course(controller, [3.0]) == pytest.approx([HIGH - (HIGH - LOW) * 0.234375])


def test_proportional_is_clipped() -> None:
    """Of a window of two, s is outside: 8 and then 1, 1.5 leave s at 6.42."""
    slow = course(Proportional(seed=0, window=2, warm_up=1), [8.0, 1.0, 1.5])
    assert slow[-1] == pytest.approx(LOW)
    assert course(Proportional(seed=0, window=2, warm_up=1), [1.0, 8.0, 9.0])[-1] == HIGH


def test_levels() -> None:
    densities = [Lenient(seed=0).level(number) for number in range(5)]
    assert densities == pytest.approx([0.29, 0.07027, 0.017029, 0.0041267, 0.001], rel=1e-4)
    ratios = [below / above for above, below in pairwise(densities)]
    assert ratios == pytest.approx([(LOW / HIGH) ** 0.25] * 4)


def test_lenient_and_strict() -> None:
    """After 1 1 1 2, m = 1.25 and sd = 0.433: 2 is above m + sd/2 = 1.467, not above m + 2·sd = 2.116."""
    lenient, strict = (rule(seed=0, warm_up=4) for rule in (Lenient, Strict))
    second = lenient.level(1)
    assert course(lenient, [1.0, 1.0, 1.0, 2.0])[-1] == HIGH
    assert course(strict, [1.0, 1.0, 1.0, 2.0])[-1] == second
    # 1 1 1 2 1: m = 1.2, sd = 0.4; 1 is not below m − sd/2 = 1.0, since equal
    assert course(strict, [1.0]) == [second]
    # nine times 1 and a 2: m = 1.1, sd = 0.3; 2 is above 1.7. Then m = 12/11: 1 is below m + sd/2.
    assert course(Lenient(seed=0, warm_up=10), [1.0] * 9 + [2.0, 1.0])[-2:] == [second, HIGH]
    # and for the strict one, with p = 1/11, m − sd/2 = 1 + p − sqrt(p (1 − p))/2 = 0.947: it holds
    assert 1 + 1 / 11 - sqrt(10 / 121) / 2 < 1.0
    assert course(Strict(seed=0, warm_up=10), [1.0] * 9 + [2.0, 1.0])[-2:] == [second, second]


@pytest.mark.parametrize("rule", [Lenient, Strict])
def test_levels_beyond_the_last_are_no_levels(rule: Any) -> None:
    """Each step is ten times as slow as all before: down to the lowest, then one up for each fast one."""
    made = rule(seed=0, warm_up=0, levels=3, window=2, down_above=0.0, up_below=0.0)
    slow = course(made, [10.0**number for number in range(6)])
    assert slow == pytest.approx([HIGH, sqrt(HIGH * LOW), LOW, LOW, LOW, LOW])
    assert made.state()["level"] == 2
    assert course(made, [1e3, 1e2, 1e1]) == pytest.approx([sqrt(HIGH * LOW), HIGH, HIGH])
    assert made.state()["level"] == 0


@pytest.mark.parametrize("rule", [Lenient, Strict])
def test_levels_end(rule: Any) -> None:
    controller = rule(seed=0, warm_up=1, window=8)
    down = course(controller, [4.0**n for n in range(20)])
    assert down[-4:] == pytest.approx([LOW] * 4)
    up = course(controller, [4.0**-n for n in range(30)])
    assert up[-4:] == [HIGH] * 4


@family
def test_equal_delays_hold_the_greatest_density(rule: Any) -> None:
    assert course(rule(seed=0), [0.1] * 100) == [HIGH] * 100


@family
def test_per_byte(rule: Any) -> None:
    """Delays in proportion to the bytes sent say nothing, taken per byte."""
    by_unit = {}
    for unit in ("seconds", "per_byte"):
        controller = rule(seed=0, warm_up=1, delay=unit)
        for size in [2**n for n in range(10)]:
            controller.observe(seen(size / 1024, bytes_sent=size))
        by_unit[unit] = controller.density()
    assert by_unit["per_byte"] == HIGH > by_unit["seconds"]


def test_lenient_sends_more_than_strict() -> None:
    """The one ordering that follows from thresholds alone: the same delays, a higher mean density."""
    delays = [1.0 + (7 * step % 11) / 10 for step in range(400)]
    assert fmean(course(Lenient(seed=0), delays)) > fmean(course(Strict(seed=0), delays))


@family
@settings(max_examples=examples(40), deadline=None)
@given(
    delays=st.lists(st.floats(0, allow_infinity=False), max_size=80),
    limits=st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)).map(sorted),
    warm_up=st.integers(0, 5),
    window=st.integers(1, 60),
)
@example(delays=[1.7e308, 0.0] * 30, limits=[LOW, HIGH], warm_up=0, window=50)
def test_density_stays_within_its_limits(
    rule: Any, delays: list[float], limits: list[float], **options: Any
) -> None:
    controller = rule(seed=1, k_min=limits[0], k_max=limits[1], **options)
    for density in course(controller, delays):
        assert limits[0] <= density <= limits[1]
    json.dumps(controller.state(), allow_nan=False)


@family
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.1])
def test_delays_must_be_finite(rule: Any, bad: float) -> None:
    with pytest.raises(ExperimentError, match=f"'{rule.name}': step 0 .*must be finite"):
        rule(seed=0).observe(seen(bad))


@pytest.mark.parametrize(
    ("rule", "options", "sentence"),
    [
        (TwoLevel, {"k_min": 0.5}, "k_min 0.5 is above k_max 0.29"),
        (TwoLevel, {"tolerance": 0.9}, "tolerance: .*greater than or equal to 1"),
        (TwoLevel, {"hysteresis": 0}, "hysteresis: "),
        (Gradient, {"factor": 1.0}, "factor: .*less than 1"),
        (Proportional, {"delay": "metres"}, "delay: .*'seconds' or 'per_byte'"),
        (Lenient, {"levels": 1}, "levels: .*greater than or equal to 2"),
        (Lenient, {"up_below": 3.0}, "up_below 3.0 is above down_above 2.0"),
        (Strict, {"window": 0}, "window: "),
        (Strict, {"warm_up": -1}, "warm_up: "),
    ],
)  # fmt: skip
def test_wrong_options(rule: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"controller '{rule.name}': {sentence}"):
        rule(seed=0, **options)
