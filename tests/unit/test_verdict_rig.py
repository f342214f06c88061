"""What the tests accept as the end of a run, by verdicts that the product itself finds."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from test_verdict import completion, links, steps
from verdict_rig import (
    BESIDE,
    PROCESSOR,
    VERDICTS,
    accepted,
    accepted_run,
    accepted_runs,
    some_valid,
)

from testbed.fidelity.evidence import Evidence, Starved
from testbed.fidelity.summary import lost_reasons
from testbed.fidelity.verdict import Verdict, judge, judge_filled

LOST = {"lost": "worker-1", "node": "server", "step": 4, "time_s": 2.0, "reason": "killed"}
BUSY = Evidence(stolen_share=0.02, cpu_starvation=Starved(9.0, 0.3))


@pytest.fixture(autouse=True)
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are no runs on real links, of which the suite says how many were excused."""
    monkeypatch.delenv(VERDICTS, raising=False)


def report(verdict: Verdict, *more: str) -> dict[str, Any]:
    """As in ``summary.json``."""
    found = asdict(replace(verdict, reasons=[*verdict.reasons, *more]))
    return {"verdict": found.pop("state"), **found}


def refused(made: dict[str, Any], said: str, code: int | None = None, **options: Any) -> None:
    code = int(made["verdict"] == "invalid") if code is None else code
    with pytest.raises(AssertionError, match=said):
        accepted(made, code, **options)


def test_that_no_run_is_valid_has_to_have_an_excuse() -> None:
    sound, busy, slow = (report(judge(found)) for found in (links(), BUSY, links()))
    slow = {**slow, "verdict": "invalid", "reasons": ["slow"]}
    slow["measures"] = {
        **slow["measures"], "link_ratio": {**slow["measures"]["link_ratio"], "state": "invalid"}
    }  # fmt: skip
    assert some_valid([sound]) == ["valid"]
    assert some_valid([slow, sound]) == ["invalid", "valid"], "what is tried may be too much"
    assert some_valid([busy, busy]) == ["invalid", "invalid"]
    for runs in ([slow], [busy, slow], []):
        with pytest.raises(AssertionError, match="link_ratio" if runs else "no runs"):
            some_valid(runs)


def test_valid_runs_end_with_0() -> None:
    made = report(judge(replace(links(), completion=completion(1.0).completion)))
    assert accepted(made, 0) == "valid"
    refused(made, "valid", 1)
    refused(made, "valid", -9)


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (Evidence(stolen_share=0.02), "degraded"),
        (Evidence(stolen_share=0.2), "invalid"),
        (Evidence(cpu_starvation=Starved(9.0, 0.1)), "degraded"),
        (Evidence(cpu_starvation=Starved(9.0, 0.3)), "invalid"),
        (steps(100, 50, overran=True), "invalid"),
        (steps(100, 6, apply_cpu_s=0.002), "degraded"),
        (BUSY, "invalid"),
    ],
)
def test_want_of_a_processor_excuses(evidence: Evidence, verdict: str) -> None:
    made = report(judge(evidence))
    assert accepted(made, int(verdict == "invalid")) == verdict
    refused(made, verdict, int(verdict != "invalid"))


@pytest.mark.parametrize(
    ("evidence", "measure"),
    [
        (links(busy_ratio=0.9), "link_ratio"),
        (links(direct_packets=99), "direct_share"),
        (links(lateness_ms={"p99": 90.0}), "lateness_max_ms, lateness_p99_ms"),
        (links(failure="gone"), "read_back"),
        (completion(2.0), "message_completion"),
        (Evidence(faults=["replicas differ"]), "consistency"),
        (Evidence(bypasses=["through memory"]), "around"),
        (Evidence(foreign_drops={"eth0": 1}), "foreign_drops"),
    ],
)
def test_nothing_else_does_not_even_on_a_busy_host(evidence: Evidence, measure: str) -> None:
    refused(report(judge(evidence)), measure)
    refused(report(judge(replace(evidence, cpu_starvation=BUSY.cpu_starvation))), measure)


def test_time_is_excused_where_the_hypervisor_took_the_processors_and_bytes_are_not() -> None:
    late = links(busy_ratio=0.7, lateness_ms={"p99": 90.0})
    assert accepted(report(judge(replace(late, stolen_share=0.3))), 1) == "invalid"
    refused(report(judge(replace(late, stolen_share=0.009))), "link_ratio")
    for fault in (
        links(direct_packets=99),
        links(failure="gone"),
        Evidence(faults=["replicas differ"]),
    ):
        refused(
            report(judge(replace(fault, stolen_share=0.3))), "direct_share|read_back|consistency"
        )


def test_beside_other_tests_time_is_excused_and_bytes_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = links(busy_ratio=0.7, lateness_ms={"p99": 90.0})
    refused(report(judge(late)), "link_ratio")
    monkeypatch.setenv(BESIDE, "1")
    assert accepted(report(judge(late)), 1) == "invalid"
    for fault in (
        links(direct_packets=99),
        links(failure="gone"),
        Evidence(faults=["replicas differ"]),
    ):
        refused(report(judge(fault)), "direct_share|read_back|consistency")


@pytest.mark.parametrize(
    ("evidence", "measure"),
    [
        (links(busy_ratio=0.5), "link_ratio"),
        (links(busy_ratio=0.95), "link_ratio"),
        (links(excess_share=0.5), "link_excess"),
        (completion(4.0), "message_completion"),
    ],
)
def test_beside_other_tests_rates_have_no_excuse_but_a_delay(
    monkeypatch: pytest.MonkeyPatch, evidence: Evidence, measure: str
) -> None:
    monkeypatch.setenv(BESIDE, "1")
    made = report(judge(evidence))
    refused(made, measure)
    busy = report(judge(replace(evidence, cpu_starvation=BUSY.cpu_starvation)))
    assert accepted(busy, int(busy["verdict"] == "invalid")) == "invalid"
    assert accepted(report(judge(completion(2.0))), 0) == "degraded"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BESIDE, raising=False)


def test_every_reason_needs_its_measure() -> None:
    refused(report(judge(BUSY), "and something else"), "explain not all")
    refused(report(judge(links()), "and something else"), "explain not all")
    refused({**report(judge(BUSY)), "reasons": []}, "explain not all")


def test_a_verdict_is_that_of_its_worst_measure() -> None:
    refused({**report(judge(BUSY)), "verdict": "valid", "reasons": []}, "worst measure invalid")
    refused({**report(judge(links())), "verdict": "degraded"}, "worst measure valid")


@pytest.mark.parametrize("name", sorted(PROCESSOR))
def test_a_renamed_measure_is_missed(name: str) -> None:
    made = report(judge(links()))
    made["measures"]["processor"] = made["measures"].pop(name)
    refused(made, name)


def test_a_run_that_did_not_end_is_not_accepted() -> None:
    refused(report(Verdict.of_failure(RuntimeError("the agent is gone"))), "no measures")
    refused({"verdict": "invalid", "not_replayed": [], "links": []}, "no summary")


def test_a_replay_may_leave_links_unjudged_but_not_all_of_them() -> None:
    short = {**links().links[0], "busy_share": 0.0}
    judged, unjudged = links().links[0], {**short, "direction": "up"}
    some = judge_filled(Evidence(seconds=60.0, links=[judged, unjudged]))
    assert [reason[:11] for reason in some.reasons] == ["not judged:"]
    assert accepted(report(some), 0) == "valid"
    refused(report(judge_filled(Evidence(seconds=60.0, links=[unjudged]))), "no link was judged")


def test_workers_are_lost_only_where_they_are_to_be() -> None:
    made = report(judge(links()), *lost_reasons({"lost": [LOST]}))
    refused(made, "worker-1")
    refused(made, "worker-1", lost=["worker-0", "worker-1"])
    assert accepted(made, 0, lost=["worker-1"]) == "valid"
    refused(report(judge(links())), "worker-1", lost=["worker-1"])


def test_runs_of_one_command_share_its_exit_code(tmp_path: Path) -> None:
    for name, verdict in (("a", judge(links())), ("b", judge(BUSY))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(report(verdict)))
    assert accepted_run(tmp_path / "a", 0) == "valid"
    assert accepted_runs(sorted(tmp_path.iterdir()), 1) == ["valid", "invalid"]
    with pytest.raises(AssertionError):
        accepted_runs(sorted(tmp_path.iterdir()), 0)
    with pytest.raises(AssertionError, match="no runs"):
        accepted_runs([], 0)


def test_every_run_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERDICTS, str(tmp_path / "verdicts"))
    accepted(report(judge(links())), 0)
    accepted(report(judge(BUSY)), 1)
    refused(report(judge(links(busy_ratio=0.9))), "link_ratio")
    counted = [json.loads(line) for line in (tmp_path / "verdicts").read_text().splitlines()]
    assert [(one["verdict"], one["excused"]) for one in counted] == [
        ("valid", False), ("invalid", True), ("invalid", False),
    ]  # fmt: skip
    assert [one["stolen"] for one in counted] == [False, True, False]
    assert {one["test"].rpartition("::")[2] for one in counted} == {"test_every_run_is_counted"}
    assert counted[1]["reasons"] == judge(BUSY).reasons
