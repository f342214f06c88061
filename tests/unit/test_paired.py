"""Differences paired by seed, against values worked out by hand."""

import pytest

from analysis.paired import paired


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


def test_mean_and_interval_by_hand() -> None:
    time = next(result for result in paired(RUNS) if result.measure == "time_s")
    assert (time.algorithm, time.baseline, time.pairs) == ("fast", "none", 3)
    assert time.mean == pytest.approx(-2.5)
    # Standard deviation 0.5, Student's t for 2 degrees of freedom 4.3027.
    assert time.half == pytest.approx(4.3027 * 0.5 / 3**0.5, rel=1e-4)
    assert time.differs and "-22.7%" in time.sentence()


def test_no_difference_says_so() -> None:
    same = [
        entry(name, seed, 10.0 + (seed if name == "a" else 3 - seed))
        for seed in (0, 1, 2, 3)
        for name in "ab"
    ]
    time = next(result for result in paired(same) if result.measure == "time_s")
    assert not time.differs
    assert "includes no difference" in time.sentence()


def test_what_is_missing_or_invalid_is_left_out() -> None:
    runs = [*RUNS, entry("none", 4, 1.0, "invalid"), entry("fast", 4, 99.0)]
    results = paired(runs)
    assert {result.measure for result in results} == {"time_s", "bytes_up", "bytes_down"}
    assert all(result.pairs == 3 for result in results)
    assert paired([]) == []
    one = next(iter(paired(RUNS[:2])))
    assert one.half is None and "no interval" in one.sentence()
