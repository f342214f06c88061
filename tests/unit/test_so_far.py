"""The verdict so far, fed by records: every check at its limit and beyond, and what is not enough to judge."""

from __future__ import annotations

import pytest

from testbed.records.exporter import STATES
from testbed.records.manifest import THRESHOLDS
from testbed.runner.observe import LEAST_STEPS, VerdictSoFar

CHECKS = {
    "read_back", "link_ratio", "lateness_max_ms", "overrun_share", "stolen_share", "foreign_drops",
}  # fmt: skip


def fresh() -> VerdictSoFar:
    return VerdictSoFar(processors=2)


def sample(at_s: float, delivered: float, busy: bool = True) -> dict[str, object]:
    about = {
        "kind": "sample",
        "link": "server",
        "direction": "up",
        "from_s": at_s,
        "to_s": at_s + 1.0,
    }
    return {**about, "asked_bits": 1e8, "delivered_bits": delivered, "busy": busy}


def host(stolen_s: float = 0.0, drops: int = 0) -> dict[str, object]:
    return {
        "kind": "host",
        "from_s": 0.0,
        "to_s": 10.0,
        "stolen_s": stolen_s,
        "backlog_drops": drops,
    }


def test_nothing_seen_is_valid_and_every_check_is_named() -> None:
    assert fresh().states() == dict.fromkeys(CHECKS, "valid")
    assert set(fresh().states().values()) <= set(STATES)


@pytest.mark.parametrize(
    ("delivered", "state"), [(1e8, "valid"), (0.95e8, "degraded"), (0.9e8, "invalid")]
)
def test_delivered_rates_of_backlogged_links(delivered: float, state: str) -> None:
    so_far = fresh()
    for second in range(3):
        so_far.record(sample(float(second), delivered))
    assert so_far.states()["link_ratio"] == state
    idle = fresh()
    for second in range(3):
        idle.record(sample(float(second), delivered, busy=False))
    assert idle.states()["link_ratio"] == "valid"
    short = fresh()
    short.record(sample(0.0, delivered))
    assert short.states()["link_ratio"] == "valid", f"under {THRESHOLDS.busy_floor_s} s"


@pytest.mark.parametrize(
    ("late_s", "state"), [(0.05, "valid"), (0.1, "degraded"), (0.2, "invalid")]
)
def test_late_changes(late_s: float, state: str) -> None:
    so_far = fresh()
    for each in (late_s, 0.0):
        so_far.record({"kind": "change", "due_s": 1.0, "applied_s": 1.0 + each})
    assert so_far.states()["lateness_max_ms"] == state


def test_one_mismatch_or_one_drop_of_the_host_is_invalid() -> None:
    so_far = fresh()
    so_far.record({"kind": "mismatch"})
    assert so_far.states()["read_back"] == "invalid"
    so_far.record(host(drops=1))
    assert so_far.states()["foreign_drops"] == "invalid"


@pytest.mark.parametrize(
    ("stolen_s", "state"), [(0.1, "valid"), (0.4, "degraded"), (0.8, "invalid")]
)
def test_stolen_time_is_of_all_processors(stolen_s: float, state: str) -> None:
    so_far = fresh()
    so_far.record(host(stolen_s))
    assert so_far.states()["stolen_share"] == state


def test_overruns_are_judged_once_there_are_enough_steps() -> None:
    so_far = fresh()
    for step in range(LEAST_STEPS - 1):
        so_far.step({"kind": "step", "overran": step == 0})
        assert so_far.states()["overrun_share"] == "valid"
    so_far.step({"kind": "step", "overran": False})
    assert so_far.states()["overrun_share"] == "invalid"
    for _ in range(100 - LEAST_STEPS):
        so_far.step({"kind": "step", "overran": False})
    so_far.step({"kind": "round"})
    assert so_far.states()["overrun_share"] == "valid"
