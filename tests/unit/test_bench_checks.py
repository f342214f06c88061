"""Checks of suites: that what was not measured, or not to be relied upon, does not pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from testbed.bench.links import lateness, rates, training, unprivileged
from testbed.bench.results import ATTEMPTS, ResultCheck, Sound, all_sound
from testbed.scenario.link_state import FRAME_BYTES


def met(checks: Iterable[ResultCheck]) -> list[bool | None]:
    return [check.met for check in checks]


def run(verdict: str, **more: Any) -> dict[str, Any]:
    return {"verdict": verdict, "reasons": [f"it was {verdict}"], **more}


def sound(*verdicts: str) -> Sound:
    found, outcomes = Sound(), iter(verdicts)
    found.add(lambda: run(next(outcomes)))
    return found


def test_an_invalid_run_is_made_again() -> None:
    found = sound("invalid", "degraded", "valid")
    assert [one["verdict"] for one in found.runs] == ["degraded"]
    assert (found.lost, found.discarded) == (0, ["it was invalid"])
    assert all_sound("x", found).met is True


def test_what_stays_invalid_is_in_no_figure_and_not_met() -> None:
    found = sound(*["invalid"] * ATTEMPTS, "valid")
    assert (found.runs, found.lost, len(found.discarded)) == ([], 1, ATTEMPTS)
    check = all_sound("at nic", found)
    assert check.met is False
    assert check.name == "repetitions that stayed invalid, at nic (it was invalid)"


def messages(**changes: Any) -> dict[str, Any]:
    return {"at": "nic", "used_p99": 0.5, "judged": 60, "groups": 100, **changes}


@pytest.mark.parametrize(
    ("row", "verdicts"),
    [
        (messages(), [True, True]),
        (messages(used_p99=1.1), [False, True]),
        (messages(judged=49), [True, False]),
        (messages(used_p99=None, judged=0), [None, False]),
        (messages(used_p99=None, judged=0, groups=0), [None, None]),
    ],
)
def test_completion_is_judged_for_half_of_all(row: dict[str, Any], verdicts: list[Any]) -> None:
    assert met(training.checks([row])) == verdicts


def test_dilation_without_its_reference_is_not_met() -> None:
    rows = [{"dilation": 1, "ratio": None}, {"dilation": 2, "ratio": None}]
    found = {1: sound(*["invalid"] * ATTEMPTS), 2: sound("valid")}
    assert met(training.dilation_checks(rows, found)) == [None, False, True]
    rows = [{"dilation": 1, "ratio": 1.0}, {"dilation": 2, "ratio": 1.03}]
    assert met(training.dilation_checks(rows, {1: sound("valid"), 2: sound("valid")})) == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(("second", "passes"), [(1.009, True), (0.98, False), (None, None)])
def test_the_same_algorithm_twice(second: float | None, passes: bool | None) -> None:
    found = {name: sound("valid") for name in training.NAMES}
    rows = [{"step_s": 1.0}, {"step_s": second}]
    assert met(training.same_twice_checks(rows, found)) == [passes, True, True]


def dead(**changes: Any) -> dict[str, Any]:
    row = {"inside_bytes": 0.0, "at_its_beginning_bytes": 3.0 * FRAME_BYTES, "first_byte_ms": 1.0}
    return {**row, "never_back": 0, **changes}


@pytest.mark.parametrize(
    ("row", "verdicts"),
    [
        (dead(), [True, True, True, True]),
        (dead(inside_bytes=1.0), [False, True, True, True]),
        (dead(at_its_beginning_bytes=3.0 * FRAME_BYTES + 1), [True, False, True, True]),
        (dead(never_back=1), [True, True, True, False]),
        (dead(first_byte_ms=None, never_back=5), [True, True, None, False]),
    ],
)
def test_an_outage_is_silent_and_ends(row: dict[str, Any], verdicts: list[Any]) -> None:
    assert met(rates.checks(row, bundle=2)) == verdicts


def late(**changes: Any) -> dict[str, Any]:
    return {"loops": 4, "changes_per_s": 10, "p99_ms": 0.9, "not_seen": 0, **changes}


@pytest.mark.parametrize(
    ("row", "verdicts"),
    [
        (late(), [True, True]),
        (late(p99_ms=1.1), [False, True]),
        (late(loops=0), [False, True]),
        (late(loops=0, p99_ms=0.4), [True, True]),
        (late(loops=0, p99_ms=0.6), [False, True]),
        (late(not_seen=1), [True, False]),
        (late(p99_ms=None, not_seen=99), [None, False]),
    ],
)
def test_changes_are_on_time_and_announced(row: dict[str, Any], verdicts: list[Any]) -> None:
    assert met(lateness.checks(row)) == verdicts


def test_the_agents_word_alone_is_no_lateness() -> None:
    unseen = {"p50": None, "p99": None, "max": None, "own_p99": 0.2, "own_max": 0.2, "missing": 9.0}
    assert lateness._row(0, 100, "narrows", [unseen])["p99_ms"] is None


def replayed(verdict: str = "valid", late_ms: float = 0.1, **changes: float) -> dict[str, Any]:
    link = {"link": "server", "direction": "up", "ratio": 1.0, "mape_1s": 0.001, **changes}
    return run(verdict, links=[{**link, "lateness_ms": {"p99": late_ms}}])


@pytest.mark.parametrize(
    ("root", "user", "verdicts"),
    [
        (replayed(), replayed(), [True, True, True, True, True]),
        (replayed(), replayed(ratio=0.99), [False, True, True, True, True]),
        (replayed(), replayed(mape_1s=0.01), [True, False, True, True, True]),
        (replayed(), replayed(late_ms=3.0), [True, True, False, True, True]),
        (replayed(), replayed("degraded"), [True, True, True, False, True]),
        (replayed("invalid"), replayed("invalid"), [True, True, True, True, False]),
        (replayed(), run("valid", links=[]), [None, None, None, True, True]),
        (run("valid", links=[]), replayed(), [None, None, None, True, True]),
    ],
)
def test_root_and_a_user_agree(root: Any, user: Any, verdicts: list[Any]) -> None:
    assert met(unprivileged.checks({"root": [root], "user": [user]})) == verdicts
