"""The arithmetic of benchmarks: histories, errors, medians, orders, limits and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.bench import results
from testbed.bench.links.lateness import largest_valid
from testbed.bench.links.rates import arrivals, lateness_s
from testbed.bench.results import (
    MBIT,
    SUITES,
    Setup,
    Suite,
    asked_bits,
    at_least,
    at_most,
    bin_errors,
    bytes_at,
    cell,
    interleaved,
    median,
    percentile,
    rate_at,
    ratio,
    square,
    suite,
    table,
    times,
    uniform,
    within,
)
from testbed.errors import ExperimentError, InputError, MachineError


def test_alternatives_take_turns() -> None:
    order = "".join(name for _, name in interleaved("abc", 3))
    assert order == "abccbaabc"
    assert [repetition for repetition, _ in interleaved("ab", 2)] == [0, 0, 1, 1]


def test_a_square_wave_begins_high() -> None:
    assert square(1, 2, 10, 0.35) == [(0.0, 2), (0.1, 1), (0.2, 2), (pytest.approx(0.3), 1)]


def test_a_random_history_is_the_same_for_all() -> None:
    first = uniform(5 * MBIT, 6 * MBIT, 0.1, 2.0, seed=3)
    assert first == uniform(5 * MBIT, 6 * MBIT, 0.1, 2.0, seed=3)
    assert first != uniform(5 * MBIT, 6 * MBIT, 0.1, 2.0, seed=4)
    assert len(first) == 20
    assert first[7][0] == 0.7
    assert all(5 * MBIT <= rate <= 6 * MBIT for _, rate in first)


HISTORY = [(0.0, 800), (1.0, 1600), (2.0, 0), (3.0, 800)]


@pytest.mark.parametrize(
    ("begin", "end", "bits"),
    [(0, 1, 800), (0.5, 1.5, 1200), (0, 4, 3200), (2.2, 2.8, 0), (3.5, 5, 1200), (1, 1, 0)],
)
def test_what_was_asked(begin: float, end: float, bits: float) -> None:
    assert asked_bits(HISTORY, begin, end) == pytest.approx(bits)


def test_the_rate_at_a_time() -> None:
    assert [rate_at(HISTORY, at) for at in (0, 0.99, 1, 2.5, 9)] == [800, 800, 1600, 0, 800]


def test_delivered_over_asked() -> None:
    marks = [(0.0, 1000), (1.0, 1100), (2.0, 1300), (3.0, 1300), (4.0, 1400)]
    assert ratio(HISTORY, marks) == pytest.approx(1.0)
    assert ratio(HISTORY, [(0.0, 0), (4.0, 200)]) == pytest.approx(0.5)
    assert bytes_at(marks, 1.5) == pytest.approx(1200)
    assert bytes_at(marks, 9.0) == 1400


def test_errors_of_bins_leave_out_what_was_not_asked_and_not_seen() -> None:
    marks = [(0.0, 0), (1.0, 110), (2.0, 290), (3.0, 295), (4.0, 395)]
    errors = bin_errors(HISTORY, marks, [0, 1, 2, 3, 4, 5])
    assert errors == pytest.approx([0.1, 0.1, 0.0])


def test_medians_and_percentiles() -> None:
    assert median([3.0, None, 1.0, 2.0]) == 2.0
    assert median([None]) is None
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([], 0.5) is None
    assert times(3.0, 2.0) == 1.5
    assert times(3.0, None) is None
    assert times(None, 2.0) is None


def test_lateness_is_counted_per_change() -> None:
    late, missing = lateness_s([1.0, 2.0, 3.0], [0.2, 1.001, 1.999, 3.05])
    assert late == pytest.approx([0.001, -0.001, 0.05])
    assert missing == 0
    assert lateness_s([1.0, 2.0], [1.5]) == ([0.5], 1)


def test_what_comes_in_an_outage() -> None:
    came = [(0.9, 10), (1.001, 20), (1.5, 30), (2.004, 40), (2.5, 50)]
    assert arrivals(came, 1.0, 2.0) == {
        "at_its_beginning": 20.0,
        "inside": 30.0,
        "first_byte_ms": pytest.approx(4.0),
    }
    assert arrivals([(0.5, 1)], 1.0, 2.0)["first_byte_ms"] is None


@pytest.mark.parametrize(
    ("limit", "found"), [(0, 0), (3, 3), (4, 4), (11, 11), (100, 64), (16, 16), (23, 23)]
)
def test_the_largest_valid_number(limit: int, found: int) -> None:
    tried: list[int] = []

    def valid(number: int) -> bool:
        tried.append(number)
        return number <= limit

    largest = largest_valid(valid, 4, 64)
    assert largest <= found
    assert largest >= found - max(1, found // 8)
    assert max(tried) <= 64


def test_limits() -> None:
    assert within("x", 1.0, 1.0, 2.0).met is True
    assert within("x", 0.99, 1.0, 2.0).met is False
    assert at_most("x", 3.0, 3.0).met is True
    assert at_most("x", 3.1, 3.0).met is False
    assert at_least("x", 2.9, 3.0).met is False
    assert within("x", None, 0, 1).met is None
    assert at_most("x", None, 1).met is None
    assert at_least("x", 1.0, 1.0).limit == "at least 1"


def test_a_suite_is_met_when_all_checks_are() -> None:
    good, bad, unknown = (at_most("x", value, 1.0) for value in (0.5, 2.0, None))
    assert Suite("t", [], [good, good]).met is True
    assert Suite("t", [], [good, bad, unknown]).met is False
    assert Suite("t", [], [good, unknown]).met is None
    assert Suite("t", [], []).met is None
    assert Suite("t", [], [good], failure="it broke").met is False
    found = Suite("t", [{"a": 1}], [good], {"repeat": 5}).to_json()
    assert found["checks"] == [{"name": "x", "measured": 0.5, "limit": "at most 1", "met": True}]
    assert (found["met"], found["rows"], found["about"]) == (True, [{"a": 1}], {"repeat": 5})


def test_tables_have_a_column_for_every_key() -> None:
    columns, cells = table([{"a": 1, "b": None}, {"a": 0.123456, "c": True}])
    assert columns == ["a", "b", "c"]
    assert cells == [["1", "-", "-"], ["0.1235", "-", "yes"]]
    assert cell(123456.7) == "123457"
    assert cell("text") == "text"


def test_every_suite_can_be_had() -> None:
    for name in SUITES:
        assert callable(suite(name))
    with pytest.raises(InputError, match=r"no suite 'speed'.*static, replay"):
        suite("speed")


def refusing(_: Setup) -> Suite:
    raise MachineError("this machine has no such thing")


def failing(_: Setup) -> Suite:
    raise ExperimentError("the link failed")


def working(setup: Setup) -> Suite:
    return Suite("works", [{"repetitions": setup.repetitions}], [at_most("x", 0.0, 1.0)])


def chosen(name: str) -> Any:
    return {"refusing": refusing, "failing": failing, "working": working}[name]


def test_a_suite_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "suite", chosen)
    outcome = results.run(["failing", "refusing", "working"], tmp_path, lambda _: None, repeat=3)
    assert [found.met for found in outcome.suites.values()] == [False, None, True]
    assert outcome.suites["failing"].failure == "the link failed"
    assert outcome.suites["refusing"].absent == ["this machine has no such thing"]
    written = json.loads(outcome.path.read_text())
    assert written == outcome.to_json()
    assert written["suites"]["working"]["rows"] == [{"repetitions": 3}]
    assert set(written) == {"suites", "machine"}


def test_results_never_replace_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "suite", chosen)
    paths = {results.run(["working"], tmp_path, lambda _: None).path for _ in range(3)}
    assert len(paths) == 3


def test_the_command_prints_json_or_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from testbed.bench.cli import app

    monkeypatch.setattr(results, "suite", chosen)
    common = ["link", "--quick", "--quiet", "--out", str(tmp_path), "--suite", "working"]
    done = CliRunner().invoke(app, [*common, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["suites"]["working"]["met"] is True
    done = CliRunner().invoke(app, common)
    assert "x: 0, at most 1: met" in done.stdout
    done = CliRunner().invoke(app, [*common, "--suite", "failing"])
    assert done.exit_code == 1
    assert "failed: the link failed" in done.stdout


def test_an_unusable_folder_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make a directory"):
        results.run(["static"], tmp_path / "file", lambda _: None)
