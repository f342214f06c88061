"""Differences and ratios paired by seed, accuracy against a margin: against values worked out by hand."""

from math import exp, log

import pytest
from not_empty import not_empty

from analysis.statistics import Interval, as_fast, inferiority, interval, paired, ratio

T2 = 4.302652729911275
"""Student's t for 2 degrees of freedom, 0.975: √(2 · 0.95² / (1 − 0.95²))."""


def entry(algorithm: str, seed: int, time_s: float, verdict: str = "valid") -> dict[str, object]:
    return {
        "algorithm": algorithm,
        "seed": seed,
        "verdict": verdict,
        "time_s": time_s,
        "accuracy": None,
        "bytes_up": 100,
        "bytes_down": 100,
    }


RUNS = [
    entry("none", 1, 10.0),
    entry("fast", 1, 8.0),
    entry("none", 2, 11.0),
    entry("fast", 2, 8.5),
    entry("none", 3, 12.0),
    entry("fast", 3, 9.0),
]


def test_the_quantile_is_students() -> None:
    assert pytest.approx((2 * 0.95**2 / (1 - 0.95**2)) ** 0.5) == T2


def test_mean_and_interval_by_hand() -> None:
    time = next(result for result in paired(RUNS) if result.measure == "time_s")
    assert (time.algorithm, time.baseline, time.pairs) == ("fast", "none", 3)
    # Standard deviation 0.5.
    half = T2 * 0.5 / 3**0.5
    found = time.difference
    assert (found.mean, found.low, found.high) == pytest.approx((-2.5, -2.5 - half, -2.5 + half))
    assert time.differs and "-22.7%" in time.sentence() and "3 pairs" in time.sentence()


def test_the_speedup_is_a_geometric_mean_by_hand() -> None:
    # Ratios 1, 2 and 4: mean of the logarithms log 2, their standard deviation log 2.
    found = ratio([3.0, 8.0, 20.0], [3.0, 4.0, 5.0])
    half = T2 * log(2) / 3**0.5
    assert found.mean == pytest.approx(2.0)
    assert (found.low, found.high) == pytest.approx((exp(log(2) - half), exp(log(2) + half)))
    assert ratio([0.0], [1.0]) == Interval()
    (time,) = [r for r in paired(RUNS, "fast") if r.measure == "time_s"]
    assert time.speedup is not None
    assert time.speedup.mean == pytest.approx((8 / 10 * 8.5 / 11 * 9 / 12) ** (1 / 3))
    others = not_empty(r for r in paired(RUNS) if r.measure != "time_s")
    assert all(r.speedup is None for r in others)


def test_of_few_values_there_is_no_interval() -> None:
    assert interval([]) == Interval() and interval([None, float("nan")]) == Interval()
    assert interval([3.0, None]) == Interval(3.0)
    assert interval([3.0, 3.0]) == Interval(3.0, 3.0, 3.0)


def test_values_that_are_not_known_make_no_interval_narrower() -> None:
    assert interval([1.0, None, 2.0, float("nan"), 4.0]) == interval([1.0, 2.0, 4.0])


def test_no_difference_says_so() -> None:
    same = [
        entry(name, seed, 10.0 + (seed if name == "a" else 3 - seed))
        for seed in (0, 1, 2, 3)
        for name in "ab"
    ]
    time, *sizes = paired(same)
    assert not time.differs
    assert "includes no difference" in time.sentence()
    assert all("includes no difference" in result.sentence() for result in sizes)


@pytest.mark.parametrize(
    ("times", "differs", "ending"),
    [
        # seeds' times differ more than their ratios: the difference alone shows nothing
        ([(8.0, 3.0), (20.0, 7.4)], True, "2 pairs; by the speed-up they differ"),
        ([(5.0, 1.0), (20.0, 15.9)], False, "2 pairs; by the speed-up they may be alike"),
    ],
)
def test_times_are_judged_by_the_speedup_that_is_shown(
    times: list[tuple[float, float]], differs: bool, ending: str
) -> None:
    runs = [
        entry(name, seed, time_s)
        for seed, pair in enumerate(times, 1)
        for name, time_s in zip(("none", "fast"), pair, strict=True)
    ]
    time = next(iter(paired(runs)))
    assert time.speedup is not None and time.speedup.leaves_out(1.0) == differs
    assert time.difference.leaves_out(0.0) != differs
    assert time.differs == time.to_json()["differs"] == differs
    assert time.sentence().endswith(ending)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((2.744, 2.7437, 2.7463), "2.74 times as fast as none (95 % interval 2.74 to 2.75)"),
        ((0.4, 0.25, 0.5), "2.5 times as slow as none (95 % interval 2 to 4)"),
        ((0.4, None, None), "2.5 times as slow as none"),
        ((1.01, 0.98, 1.04), "as fast as none (95 % interval 0.98 to 1.04)"),
        ((None, None, None), "not compared with none: no seed has a run of both that counts"),
    ],
)
def test_a_speedup_in_words_lies_in_its_interval(
    ends: tuple[float | None, float | None, float | None], said: str
) -> None:
    assert as_fast(Interval(*ends), "none") == said


def test_what_is_missing_or_invalid_is_left_out() -> None:
    runs = [*RUNS, entry("none", 4, 1.0, "invalid"), entry("fast", 4, 99.0)]
    results = paired(runs)
    assert {result.measure for result in results} == {"time_s", "bytes_up", "bytes_down"}
    assert all(result.pairs == 3 for result in results)
    assert paired([]) == []
    one = next(iter(paired(RUNS[:2])))
    assert one.difference == Interval(-2.0) and "no interval" in one.sentence()


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.0049, 0.1, "not inferior"),
        (-0.005, 0.1, "not decided"),
        (-0.1, -0.0051, "inferior"),
        (-0.1, -0.005, "not decided"),
        (-0.004, -0.001, "not inferior"),
        (None, None, "not decided"),
    ],
)
def test_inferiority_is_decided_by_the_ends(
    low: float | None, high: float | None, said: str
) -> None:
    assert inferiority(Interval(0.0, low, high), 0.005) == said
