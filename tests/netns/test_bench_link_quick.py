"""Every suite of ``bench link`` in its quick form, on real links: it measures, and what it says can be.

The machine may be busy: figures are held to what a suite that is broken leaves, not to the suites' own limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from command_rig import measured
from verdict_rig import some_valid

from testbed.bench.links.certificate import HOST_FAULTS, LINK_FAULTS
from testbed.bench.links.training import QUICK_STEPS
from testbed.bench.results import SUITES

pytestmark = pytest.mark.timeout(290)
ELSEWHERE = {"static", "swing"}
"""Suites of tests/netns/test_bench.py."""
VERDICTS = {"valid", "degraded", "invalid"}
WRONG = r"the kernel held|failed after t0|that nobody asked for|, not to "
"""Words of alarms that no busy host explains."""
Row = dict[str, Any]


def numbers(found: Any) -> Iterator[float]:
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list):
        for each in found:
            yield from numbers(each)
    elif isinstance(found, int | float) and not isinstance(found, bool):
        yield float(found)


def rows_by(found: Row, *keys: str) -> dict[Any, Row]:
    made = {tuple(row[key] for key in keys): row for row in found["rows"]}
    assert len(made) == len(found["rows"])
    return {key[0] if len(key) == 1 else key: row for key, row in made.items()}


def replay(found: Row) -> None:
    rows = rows_by(found, "alternative")
    others = {"tc-htb", "tc-htb-1ms", "pyroute2-htb", "tc-tbf"}
    assert set(rows) >= {"narrows", "narrows-long-bundles", *others}
    assert (
        rows["narrows"]["gso_max_segs"] == 1 and rows["narrows-long-bundles"]["gso_max_segs"] >= 4
    )
    for row in rows.values():
        assert 0.3 < row["delivered/asked"] < 1.1, row
        assert 0 <= row["second_mean"] <= row["second_worst"] < 0.8, row
        assert 0 < row["step_median"] <= row["step_worst"] and row["step_mean"] < 0.8, row
    assert {check["name"] for check in found["checks"]} == {
        f"mean error per {each}{which}" for each in ("1 s", "step") for which in ("", ", longest bundles")
    }  # fmt: skip
    by_name = {check["name"]: check["measured"] for check in found["checks"]}
    assert by_name["mean error per step"] == rows["narrows"]["step_mean"]
    bundled = rows["narrows-long-bundles"]["step_mean"]
    assert by_name["mean error per step, longest bundles"] == bundled


def lateness(found: Row) -> None:
    rows, names = rows_by(found, "loops", "alternative"), ("narrows", "tc-htb", "pyroute2-htb")
    assert set(rows) == {(loops, name) for loops in (0, 4) for name in names}
    for (_, name), row in rows.items():
        assert row["changes_per_s"] == 100
        # a change shows half a packet's time before it is due, if it is made at its instant
        assert -0.5 < row["p50_ms"] <= row["max_ms"] < 1000, row
        if name == "narrows":
            # of 99 changes; what was never announced was never made
            assert row["not_seen"] <= 5, row
            assert 0 < row["own_p99_ms"] <= row["p99_ms"], row
        else:
            assert row["own_p99_ms"] is None


def outage(found: Row) -> None:
    rows = rows_by(found, "alternative")
    assert set(rows) == {"narrows", "tc-htb", "pyroute2-htb", "tc-tbf"}
    ours = rows["narrows"]
    passing = 100e6 / 8 * 0.5  # in as long as the outage, were there none
    assert ours["inside_bytes"] < 0.3 * passing and ours["at_its_beginning_bytes"] < 0.3 * passing
    assert ours["never_back"] == 0 and 0 <= ours["first_byte_ms"] < 1000, ours


def departures(found: Row) -> None:
    rows = rows_by(found, "highest_mbit", "alternative")
    assert {name for _, name in rows} == {"narrows", "tc-htb", "tc-htb-1ms", "tc-tbf"}
    for row in rows.values():
        # tc's classes may stay dead from the trace's first outage on
        assert row["packets"] > (10 if row["alternative"] == "narrows" else 0), row
        assert row["missing"] >= 0, row
        assert 0 <= row["median_ms"] <= row["p99_ms"], row
    for highest in {highest for highest, _ in rows}:
        ours, theirs = rows[highest, "narrows"], rows[highest, "tc-htb"]
        # whoever is given 1 kbit/s for an outage stays dead long after it
        assert ours["packets"] > 2 * theirs["packets"] and ours["missing"] < theirs["missing"] / 2
        assert ours["median_ms"] < theirs["median_ms"] / 2


def completion(found: Row) -> None:
    rows = rows_by(found, "at")
    assert set(rows) == {"nic", "network"} and found["about"]["steps"] == QUICK_STEPS
    for row in rows.values():
        assert set(row["verdicts"].split()) <= VERDICTS
        # of every step the workers' gradients, and what they are answered
        assert row["groups"] == 2 * QUICK_STEPS and 0 < row["judged"] <= row["groups"], row
        assert 0 < row["used_p50"] <= row["used_p99"] and 0 < row["error_p99"] < 5, row


def repeated(found: Row, key: str, names: set[Any]) -> dict[Any, Row]:
    """Rows whose runs may all have been invalid, which is then said."""
    rows, about = rows_by(found, key), found["about"]
    assert set(rows) == names and about["steps"] == QUICK_STEPS
    for name, row in rows.items():
        discarded = about["discarded"][str(name)]
        assert len(discarded) == (row["step_s"] is None), "one attempt, and a figure or a reason"
        assert all(discarded)
        # computation alone takes 250 ms
        assert row["step_s"] is None or 0.25 < row["step_s"] < 3, row
        assert set(row["verdicts"].split()) <= {"valid", "degraded"}
    return rows


def dilation(found: Row) -> None:
    rows = repeated(found, "dilation", {1, 2})
    for row in rows.values():
        if row["step_s"] is not None:
            assert 0.7 < row["step/expected"] < 2, row
    if rows[1]["step_s"] and rows[2]["step_s"]:
        assert rows[1]["ratio"] == 1 and 0.5 < rows[2]["ratio"] < 2, rows


def aa(found: Row) -> None:
    rows = repeated(found, "name", {"A", "A again"})
    (check,) = (c for c in found["checks"] if c["name"] == "relative difference")
    first, second = (row["step_s"] for row in rows.values())
    if first and second:
        assert check["measured"] == pytest.approx(second / first - 1)
        assert abs(check["measured"]) < 1


def nodes(found: Row) -> None:
    (largest,) = found["about"]["found"]
    assert found["rows"][0]["nodes"] == 4 and 0 <= largest <= 4
    valid = [row["nodes"] for row in found["rows"] if row["valid"]]
    assert max(valid, default=0) == largest
    for row in found["rows"]:
        assert 0.3 < row["lowest_ratio"] <= row["highest_ratio"] < 1.1, row
        assert row["late_p99_ms"] > 0 and bool(row["first_reason"]) is not row["valid"], row


def certificate(found: Row) -> None:
    rows = rows_by(found, "fault")
    clean = rows["none"]["cases"] + rows["none, but time was stolen"]["cases"]
    # four link directions with a fault, of the four of each of two sessions and of two clean ones
    assert clean == 4 * found["about"]["links"] - len(LINK_FAULTS)
    for kind in (*LINK_FAULTS, *HOST_FAULTS):
        assert rows[kind]["cases"] == 1, rows[kind]
    # what the kernel holds is not what was asked for, and the agent stood still: on any machine;
    # but where processors are busy, none of the few outages may have let itself be opened
    for kind in {*LINK_FAULTS, "late"} - {"opened"}:
        assert rows[kind]["alarms"] == 1, (rows[kind], found["about"]["wrong"])
    # a clean link of a busy host is late at most
    kinds = {"none", "none, but time was stolen"}
    wrong = [note for note in found["about"]["wrong"] if note["fault"] in kinds]
    said = [sentence for note in wrong for sentence in note["alarms"]]
    assert not [sentence for sentence in said if re.search(WRONG, sentence)], said


def agreement(found: Row) -> None:
    if found["absent"] and "cannot run this Python" in found["absent"][0]:
        pytest.skip(found["absent"][0])
    rows = rows_by(found, "who", "link")
    places = {f"{node} {way}" for node in ("server", "worker-0") for way in ("up", "down")}
    assert set(rows) == {(who, place) for who in ("root", "user") for place in places}
    for row in rows.values():
        assert 0.5 < row["ratio"] < 1.1 and 0 <= row["mape_1s"] < 0.5, row
        assert set(row["verdicts"].split()) <= VERDICTS
    # only the server's link follows a trace
    assert all(row["late_p99_ms"] > 0 for (_, at), row in rows.items() if at.startswith("server"))


def judged(found: Row, folder: Path) -> list[Row]:
    """Verdicts of a suite's runs, with their reasons and measures: of trainings they are in the folder."""
    trained = [json.loads(path.read_text()) for path in folder.glob("runs/*/summary.json")]
    return trained or found["about"]["judged"]


JUDGED = ("completion", "dilation", "aa", "nodes", "agreement")
"""Suites that go on where a run is invalid. That all are has to have an excuse."""
LOOKS: dict[str, Callable[[Row], None]] = {
    "replay": replay, "lateness": lateness, "outage": outage, "departures": departures, "completion": completion,
    "dilation": dilation, "aa": aa, "nodes": nodes, "certificate": certificate,
    "agreement": agreement,
}  # fmt: skip


SHORT = ("outage", "nodes")
"""Suites of which the quick form is quick enough for every day.

``outage`` has the alternatives of ``replay``, and how a trace is followed is in ``test_replay.py``.
"""


def test_every_suite_is_looked_at() -> None:
    assert set(LOOKS) | ELSEWHERE == set(SUITES)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                *([] if name in SHORT else [pytest.mark.nightly, pytest.mark.timed]),
                *([pytest.mark.judged] if name in {"replay", *JUDGED} - {*SHORT} else []),
                *([pytest.mark.optional] if name == "agreement" else []),
            ],
        )
        for name in LOOKS
    ],
)
def test_a_suite_measures(name: str, state: Path, tmp_path: Path) -> None:
    document, folder = measured("link", "--suite", name, out=tmp_path)
    (found,) = document["suites"].values()
    assert found["failure"] is None
    assert all(map(isfinite, numbers(found)))
    assert all(check["met"] is not None or check["measured"] is None for check in found["checks"])
    LOOKS[name](found)
    if name in JUDGED:
        some_valid(judged(found, folder))
    assert found["checks"]
    # a journal goes when everything in it is gone
    assert not list(state.glob("*.journal"))
