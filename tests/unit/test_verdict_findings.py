"""Every measure's figure, limit and sentence, from evidence of which both can be worked out by hand."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from testbed.fidelity.evidence import (
    ChangeAudit,
    CheckResult,
    Evidence,
    LossSeen,
    PathSeen,
    Starved,
)
from testbed.fidelity.link_checks import all_findings
from testbed.fidelity.verdict import judge
from testbed.records.manifest import THRESHOLDS

LINK = {
    "link": "a", "direction": "up", "from_s": 10.0, "to_s": 30.0, "unwatched_s": 0.1, "busy_share": 0.5,
    "busy_ratio": 1.0, "busy_mape_1s": 0.01, "class_packets": 900, "class_bytes": 0, "direct_packets": 100,
}  # fmt: skip
STEP = {
    "step": 0, "start_s": 10.0, "end_s": 11.0, "overran": False, "compress_s": 0.25, "compress_cpu_s": 0.25,
    "apply_s": 0.25, "apply_cpu_s": 0.25, "bytes_up": 10, "bytes_down": 5,
}  # fmt: skip


def of(measure: str, **evidence: Any) -> list[CheckResult]:
    found = all_findings(Evidence(**evidence), THRESHOLDS)
    return [finding for finding in found if finding.measure == measure]


def figures(measure: str, **evidence: Any) -> list[tuple[float | None, float]]:
    return [(finding.deviation, finding.limit) for finding in of(measure, **evidence)]


def link(measure: str, seconds: float = 60.0, **changed: Any) -> CheckResult:
    (found,) = of(measure, links=[{**LINK, **changed}], seconds=seconds)
    return found


def test_the_thresholds_are_those_of_the_table_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "verdict.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|$", text, re.M))
    assert {name: float(value) for name, value in table.items()} == asdict(THRESHOLDS)


def test_a_limit_belongs_to_the_better_state() -> None:
    """Up to the limit valid, up to the factor times it degraded; a billionth above is rounding."""
    for limit, factor in ((0.02, 3.0), (8.0, 2.0)):
        states = {
            scale: CheckResult("m", "", limit * scale, limit).state(factor)
            for scale in (1, 1 + 5e-10, 1 + 1e-8, factor, factor * (1 + 5e-10), factor * (1 + 1e-8))
        }
        assert list(states.values()) == [
            "valid", "valid", "degraded", "degraded", "degraded", "invalid"
        ]  # fmt: skip
    assert CheckResult("m", "", 0.0).state(3.0) == "valid"
    assert CheckResult("m", "", 1e-12).state(3.0) == "invalid"
    assert CheckResult("m", "").state(3.0) == "valid"


def test_every_measure_of_links_is_named_where_nothing_reported_them() -> None:
    found = {finding.measure for finding in all_findings(Evidence(), THRESHOLDS)}
    assert found >= {
        "link_ratio", "link_mape_1s", "link_excess", "lateness_p99_ms", "lateness_max_ms", "unwatched_share", "direct_share",
        "outage_bytes", "resume_ms", "changes", "loss", "line_room", "min_rtt", "foreign_drops", "stolen_share",
        "starved_share", "overrun_share", "contended_share", "message_completion", "byte_identity", "frame_identity",
    }  # fmt: skip
    assert "around" not in found
    assert all(finding.deviation is None for finding in all_findings(Evidence(), THRESHOLDS))


def test_the_worst_place_is_the_one_furthest_beyond_its_own_limit() -> None:
    """2.5 ms too long where 3 ms are allowed, and 2 ms where 1 ms is."""
    paths = [PathSeen("a", "s", 0.1025, 0.1, 0.1), PathSeen("b", "s", 0.002, 0.0, 0.0)]
    assert [each.limit for each in of("min_rtt", paths=paths)] == pytest.approx([3e-3, 1e-3])
    own = judge(Evidence(paths=paths)).measures["min_rtt"]
    assert (own["state"], own["place"]) == ("degraded", "b to s")


def test_what_was_wrong_at_t0_and_what_the_kernel_held_are_findings_each() -> None:
    wrong = {"what": "rate", "held": 5, "asked": 7, "from_s": 1.0, "to_s": 2.5}
    line = {**wrong, "what": "line", "held": "no line", "asked": "a line of 5 ms"}
    links = [{**LINK, "mismatches": [wrong, line], "failure": "the device is gone"}]
    found = of("read_back", starts={"b down": ["its queue is another one"]}, links=links)
    assert [(each.deviation, each.limit, each.subject) for each in found] == [
        (1.0, 0.0, "b down"), (1.0, 0.0, "a up"), (1.0, 0.0, "a up"), (1.0, 0.0, "a up"),
    ]  # fmt: skip
    assert [each.sentence for each in found] == [
        "b down: its queue is another one",
        "a up failed after t0: the device is gone",
        "from 1.00 to 2.50 s the kernel held a rate of 5 bit/s for a up, not the rate of 7 bit/s that was asked",
        "from 1.00 to 2.50 s the kernel held no line for a up, not the line of 5 ms that was asked",
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([], "a up: all 3 changes were made as asked"),
        (["x"], "a up: x"),
        (["x", "y"], "a up: x (and 1 more faults of its changes)"),
        (["x", "y", "z"], "a up: x (and 2 more faults of its changes)"),
    ],
)
def test_each_fault_of_the_changes_counts_and_the_first_is_told(
    wrong: list[str], said: str
) -> None:
    (found,) = of("changes", followed={"a up": ChangeAudit(expected=3, wrong=wrong)})
    assert (found.sentence, found.deviation, found.limit) == (said, float(len(wrong)), 0.0)


def test_two_seconds_of_backlog_are_enough_to_judge_a_link_by() -> None:
    for share, judged in ((0.1, True), (0.0999, False)):
        ratio = link("link_ratio", 20.0, busy_share=share, busy_ratio=0.75)
        mape = link("link_mape_1s", 20.0, busy_share=share)
        assert (ratio.deviation, ratio.limit) == ((0.25, 0.02) if judged else (None, 0.0))
        assert (mape.deviation, mape.limit) == ((0.01, 0.02) if judged else (None, 0.0))
    assert link("link_ratio", busy_ratio=None).deviation is None
    assert "no whole second" in link("link_mape_1s", busy_mape_1s=None).sentence
    assert "0.98 to 1.02" in link("link_ratio").sentence


def test_time_in_which_nobody_looked_is_a_share_of_the_time_from_first_to_last_look() -> None:
    found = link("unwatched_share")  # 0.1 of 30 - 10 s
    assert (found.deviation, found.limit) == (pytest.approx(0.1 / 20), 0.01)
    assert link("unwatched_share", from_s=29.5).deviation == pytest.approx(0.1 / 0.5)
    assert link("unwatched_share", from_s=None, to_s=8.0).deviation == pytest.approx(0.1 / 8)
    assert link("unwatched_share", from_s=None, to_s=None).deviation is None
    assert link("unwatched_share", to_s=10.0).deviation is None


def test_packets_outside_the_class_are_a_share_of_all() -> None:
    assert link("direct_share").deviation == 0.1
    assert link("direct_share", direct_packets=1, class_packets=None).deviation == 1.0
    assert link("direct_share", direct_packets=None).deviation == 0.0
    assert link("direct_share", direct_packets=None, class_packets=None).deviation == 0.0
    assert link("direct_share", direct_packets=None).sentence.startswith("0 of 900 packets")


def test_an_outage_lets_four_bundles_out_and_one_more_every_fifty_seconds() -> None:
    """Frames of 1514 B: 2 outages of 4 bundles of 3 frames, and one for the fifty of 99 s."""
    out = {"outages": 2, "outage_s": 99.0, "gso_max_segs": 3, "outage_bytes": 700, "resume_ms": 7.0}
    found = link("outage_bytes", **out)
    assert (found.deviation, found.limit) == (700.0, (2 * 4 + 1) * 3 * 1514.0)
    assert link("outage_bytes", **{**out, "gso_max_segs": None}).limit == 9 * 1514.0
    assert link("outage_bytes", **{**out, "outage_s": None}).limit == 8 * 3 * 1514.0
    resume = link("resume_ms", **out)
    assert (resume.deviation, resume.limit) == (7.0, 20.0)
    assert link("resume_ms", **{**out, "resume_ms": None}).deviation is None
    for measure in ("outage_bytes", "resume_ms"):
        assert link(measure, outages=0).sentence == "a up had no outage that ended"


def test_an_outage_that_leaks_does_not_hide_among_others() -> None:
    """A hundred may let 400 frames out, one of 60 s no more than 5; old records tell only of all."""
    out = {"outages": 100, "outage_s": 30.0, "outage_bytes": 6 * 1514, "gso_max_segs": 1}
    worst = {"outage_worst_bytes": 6 * 1514, "outage_worst_s": 60.0}
    (together,) = of("outage_bytes", links=[{**LINK, **out}])
    assert together.state(3.0) == "valid"
    found = of("outage_bytes", links=[{**LINK, **out, **worst}])
    assert [(each.deviation, each.limit) for each in found] == [
        (6 * 1514.0, 400 * 1514.0), (6 * 1514.0, 5 * 1514.0),
    ]  # fmt: skip
    assert found[1].state(3.0) == "degraded"
    assert "in one outage; at most 7570 B may" in found[1].sentence


def test_lateness_is_judged_by_what_is_sure_and_by_the_latest() -> None:
    late = {"p99": 9.0, "p99_at_least": 6.0, "max": 12.0}
    assert figures("lateness_p99_ms", links=[{**LINK, "lateness_ms": late}]) == [(6.0, 10.0)]
    assert figures("lateness_max_ms", links=[{**LINK, "lateness_ms": late}]) == [(12.0, 50.0)]
    assert link("lateness_p99_ms", lateness_ms={"p99": 9.0}).deviation == 9.0
    assert link("lateness_max_ms", lateness_ms={"p99": 9.0}).deviation == 9.0
    for measure in ("lateness_p99_ms", "lateness_max_ms"):
        assert link(measure, lateness_ms={"p99": None}).sentence == "a up never changed"


def test_losses_are_judged_where_they_can_be_and_the_others_are_told_of() -> None:
    losses = {
        "a up": LossSeen(1000, 0, why="its loss changed during the run"),
        "b up": LossSeen(1000, 20, asked=0.03, low=0.01, high=0.04),
        "c up": LossSeen(1000, 20, asked=None, low=0.01, high=None, why="no model"),
    }
    found = of("loss", losses=losses)
    assert [each.subject for each in found] == ["a up", "b up", "c up"]
    assert [each.limit for each in found] == [0.0, 1.0, 0.0]
    assert found[1].deviation == pytest.approx(0.5)  # 0.03 is half way from 0.02 to 0.04
    assert (found[0].deviation, found[2].deviation) == (None, None)
    assert found[0].sentence == "a up: its loss changed during the run"


def test_a_delay_line_must_have_room_for_all() -> None:
    links = [LINK, {**LINK, "line_limit": 0}, {**LINK, "link": "b", "line_limit": 3}]
    assert [(each.deviation, each.limit, each.subject) for each in of("line_room", links=links)] == [
        (0.0, 0.0, "a up"), (3.0, 0.0, "b up"),
    ]  # fmt: skip
    (none,) = of("line_room", links=[LINK])
    assert none.sentence == "no delay line counts what it has no room for"


def test_round_trips_may_be_off_by_a_millisecond_and_two_percent_of_the_nearer_bound() -> None:
    paths = [
        PathSeen("a", "b", 0.120, 0.050, 0.100),
        PathSeen("a", "c", 0.040, 0.050, 0.100),
        PathSeen("a", None, 0.060, 0.050, 0.100),
    ]
    found = of("min_rtt", paths=paths)
    assert [(each.deviation, each.limit) for each in found] == [
        (pytest.approx(0.020), pytest.approx(0.001 + 0.02 * 0.100)),
        (pytest.approx(0.010), pytest.approx(0.001 + 0.02 * 0.050)),
        (0.0, pytest.approx(0.001 + 0.02 * 0.050)),
    ]
    assert (
        "from a to b was 120.00 ms, 20.00 ms above what was asked (100.00 ms)" in found[0].sentence
    )
    assert "10.00 ms below what was asked (50.00 ms); at most 2.00 ms" in found[1].sentence
    assert [each.sentence for each in of("min_rtt")] == ["no round-trip times were counted"]


def test_what_nodes_do_not_agree_on_and_what_went_around_are_faults_each() -> None:
    assert figures("consistency", faults=["x", "y"]) == [(1.0, 0.0), (1.0, 0.0)]
    assert figures("around", bypasses=["x"], bypass_unwatched=["y"]) == [(1.0, 0.0), (None, 0.0)]
    (none,) = of("around", bypasses=[])
    assert (none.sentence, none.deviation) == ("nothing went around the links", 0.0)
    assert [each.deviation for each in of("around", bypasses=[], bypass_unwatched=["y"])] == [None]


def test_shares_of_the_processor_have_their_limits() -> None:
    assert figures("foreign_drops", foreign_drops={"x": 2}) == [(2.0, 0)]
    assert figures("stolen_share", stolen_share=0.25) == [(0.25, 0.01)]
    assert figures("starved_share", cpu_starvation=Starved(2.0, 0.3)) == [(0.3, 0.05)]
    (short,) = of("starved_share", cpu_starvation=Starved(1.9, 0.3))
    assert short.deviation is None
    assert "watched for 1.9 s while traffic was under way, under 2 s" in short.sentence
    assert "watched for 0.0 s" in of("starved_share")[0].sentence


@pytest.mark.parametrize(
    ("wall", "processor", "waited"),
    [
        (0.75, 0.5, 0),  # 1.5 times is no wait yet
        (0.7500001, 0.5, 1),
        (0.01, 0.0, 0),  # lost 1 % of its step of 1 s: not more
        (0.0100001, 0.0, 1),
        (0.009, 0.001, 0),
    ],
)
def test_a_phase_waited_beyond_both_limits(wall: float, processor: float, waited: int) -> None:
    slow = {**STEP, "start_s": 0.0, "end_s": 1.0, "apply_s": wall, "apply_cpu_s": processor}
    later = {**slow, "start_s": 10.0, "end_s": 11.0}
    for step in (slow, later):
        assert figures("contended_share", steps=[step, STEP]) == [(waited / 4, 0.01)]


def test_steps_that_overran_are_a_share_of_the_steps() -> None:
    overran = [{**STEP, "overran": True}, STEP, STEP, STEP]
    assert figures("overrun_share", steps=overran) == [(0.25, 0.01)]
    for measure in ("overrun_share", "contended_share"):
        assert [each.sentence for each in of(measure)] == ["there are no steps"]


def test_completion_is_judged_by_what_is_sure_against_its_own_tolerance() -> None:
    counts = {"groups": 9, "judged": 9, "not_judged": {"short": 0, "drops": 2}}
    found = {**counts, **{key: {"p99_at_least": 2.0} for key in ("used", "error", "error_ms")}}
    assert figures("message_completion", completion=found) == [(2.0, 1.0)]
    (none,) = of("message_completion", completion={**found, "judged": 0})
    assert none.sentence == "no group of messages could be judged (2 drops)"
    (nothing,) = of("message_completion", completion={**found, "judged": 0, "groups": 0})
    assert nothing.sentence == "no messages were followed"


def test_bytes_may_be_off_by_half_a_percent_and_a_kilobyte_a_connection() -> None:
    """Two sockets sent 100,000 B and 66 B for each of 100 packets: 213,200 B."""
    sockets = [
        {"node": "a", "peer": peer, "bytes_sent": 100_000, "segs_out": 100} for peer in ("b", "c")
    ]
    for held, off in ((213_200, 0.0), (203_200, 10_000.0), (223_200, 10_000.0), (213_199, 1.0)):
        links = [{**LINK, "class_bytes": held}]
        (found,) = of("byte_identity", links=links, sockets=sockets)
        assert found.deviation == pytest.approx(off / 213_200)
        assert found.limit == pytest.approx(0.005 + 2 * 1024 / 213_200)
    silent = [{"node": "a", "peer": "b", "bytes_sent": 0, "segs_out": 0}]
    (found,) = of("byte_identity", links=[{**LINK, "class_bytes": 5}], sockets=silent)
    assert (found.deviation, found.limit) == (5.0, 0.005 + 1024)
    (none,) = of("byte_identity")
    assert none.sentence == "there are no socket counters to hold against the links"


def test_a_place_that_sockets_do_not_account_for_leaves_the_others_judged() -> None:
    links = [LINK, {**LINK, "link": "b"}]
    sockets = [
        {"node": node, "peer": "c", "bytes_sent": 1000, "segs_out": 0} for node in ("a", "b")
    ]
    found = of("byte_identity", links=links, sockets=sockets, unattributed={"a up": "it was away"})
    assert [(each.subject, each.deviation) for each in found] == [("a up", None), ("b up", 1.0)]
    assert found[0].sentence == "a up: it was away"


def test_rounds_whose_frames_differ_count_and_the_first_is_told() -> None:
    rounds = [
        {"step": step, "messages": [{"bytes": 10.0}], "bytes_down": down}
        for step, down in ((0, 6), (1, 7), (2, 5))
    ]
    steps = [{**STEP, "step": step} for step in (0, 1, 2)]
    (found,) = of("frame_identity", steps=steps, rounds=rounds)
    assert (found.deviation, found.limit) == (2.0, 0.0)
    assert found.sentence.startswith("step 0: ")
    (rested,) = of("frame_identity", steps=steps[:2], rests=steps[2:], rounds=rounds[2:])
    assert rested.sentence == "all frames are counted alike at both ends"
    for partial in ({"steps": steps}, {"rounds": rounds}):
        (none,) = of("frame_identity", **partial)
        assert none.sentence == "there are no rounds"


def test_the_worst_place_stands_for_its_measure_with_how_many_were_judged() -> None:
    links = [{**LINK, "link": name, "busy_ratio": ratio} for name, ratio in zip("abc", (1.0, 0.5, 0.75), strict=True)]  # fmt: skip
    idle = {**LINK, "link": "d", "busy_share": 0.0}
    found = judge(Evidence(links=[*links, idle], seconds=60.0)).measures["link_ratio"]
    assert found == {
        "deviation": 0.5, "limit": 0.02, "state": "invalid", "place": "b up", "judged": 3, "not_judged": 1,
    }  # fmt: skip
