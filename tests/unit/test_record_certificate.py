"""The certificate: changes against the scenario, disturbed times, the host, and every field explained."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from synthetic_replay import ENDS, Replay, clean, held_instead

from testbed.fidelity.evidence import (
    Evidence,
    LossSeen,
    PathSeen,
    Starved,
    audit_changes,
    audit_initial_state,
)
from testbed.fidelity.reference import RequestedLinks
from testbed.fidelity.run_checks import nodes_seen
from testbed.fidelity.verdict import _of, certificate, disturbed, judge
from testbed.records.intervals import HostLog, IntervalSet, Moment
from testbed.records.link_log import Changes, LinkLog
from testbed.records.manifest import THRESHOLDS
from testbed.records.run_directory import to_json
from testbed.runner.node_events import HostWatch, Reading, between, reading
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState
from testbed.scenario.node_timeline import NodeChange

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "certificate.md"
UP = LinkDirection("w", "up")
SHAPES = [LinkState(10, 100), LinkState(20, 100), LinkState(0, 100), LinkState(40, 200)]
ASKED = RequestedLinks({UP: SHAPES[0]}, [LinkChange(float(n), UP, SHAPES[n]) for n in (1, 2, 3)])


def made(time_s: float, shape: LinkState, **changed: Any) -> dict[str, Any]:
    return {
        "due_s": time_s,
        "applied_s": time_s,
        "rate_bits": shape.rate_bits,
        "queue_bytes": shape.queue_bytes,
        **changed,
    }


ALL = [made(float(n), SHAPES[n]) for n in (1, 2, 3)]


def faults(records: list[dict[str, Any]], until_s: float = 5.0) -> list[str]:
    return audit_changes(ASKED, {UP: Changes(records)}, {UP: until_s})[UP].faults


def test_changes_that_were_all_made() -> None:
    found = audit_changes(ASKED, {UP: Changes(ALL)}, {UP: 5.0})[UP]
    assert (found.expected, found.applied, found.faults) == (3, 3, [])
    assert audit_changes(ASKED, {UP: Changes(ALL)}, {}) == {}


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_change_that_is_missing(lost: int) -> None:
    (said,) = faults(ALL[:lost] + ALL[lost + 1 :])
    assert said == f"1 of 3 changes were never made, the first was due at {lost + 1:.3f} s"


def test_a_change_that_is_due_at_the_end_may_be_under_way() -> None:
    assert faults(ALL[:2], 3.05) == []
    assert faults(ALL, 3.05) == []
    assert len(faults(ALL[:2], 3.2)) == 1
    assert faults(ALL[:2], 2.5) == []


def test_a_change_to_something_else_or_at_another_time() -> None:
    assert "was to 21 bit/s" in faults([made(1.0, LinkState(21, 100)), *ALL[1:]])[0]
    assert "and 99 B" in faults([made(1.0, LinkState(20, 99)), *ALL[1:]])[0]
    assert faults([made(1.0, SHAPES[1], impairments={}), *ALL[1:]]) == []
    assert "{'loss': 0.1}" in faults([made(1.0, SHAPES[1], impairments={"loss": 0.1}), *ALL[1:]])[0]
    moved = faults([made(1.01, SHAPES[1]), *ALL[1:]])
    assert len(moved) == 2
    assert "nobody asked for" in moved[0]


def test_what_holds_at_t0() -> None:
    held = {"link": "w", "direction": "up", "rate_bits": 16, "limit_bytes": 100}
    assert audit_initial_state(ASKED, [held]) == {}  # rates are held in whole bytes
    assert len(audit_initial_state(ASKED, [{**held, "rate_bits": 24}])[UP]) == 1
    assert len(audit_initial_state(ASKED, [{**held, "limit_bytes": 50}])[UP]) == 1
    assert audit_initial_state(ASKED, [{**held, "link": "other", "limit_bytes": 50}]) == {}


def test_spans_are_merged() -> None:
    spans = IntervalSet([(3.0, 4.0), (0.0, 1.0), (1.0, 2.0), (0.5, 0.6)])
    assert list(spans) == [(0.0, 2.0), (3.0, 4.0)]
    assert spans.total_s == 3.0
    assert spans.overlaps(1.9, 2.5)
    assert not spans.overlaps(2.0, 3.0)
    assert spans.covers(0.2, 1.8)
    assert not spans.covers(1.5, 3.5)
    assert not IntervalSet()


@pytest.mark.parametrize("seed", range(40))
def test_a_set_of_intervals_has_every_moment_of_each(seed: int) -> None:
    """Whatever their order, one within another too, and whether they are looked at in between or not."""
    random, spans, added = Random(seed), IntervalSet(), list[tuple[float, float]]()
    for _ in range(random.randint(1, 12)):
        from_s = float(random.randrange(0, 40, 2))
        added.append((from_s, from_s + random.choice([2.0, 4.0, 8.0, 20.0])))
        spans.add(*added[-1])
        if random.random() < 0.4:
            assert spans.covers(*added[-1])
    inside = [any(a < at < b for a, b in added) for at in range(1, 62, 2)]
    assert [spans.overlaps(at - 0.5, at + 0.5) for at in range(1, 62, 2)] == inside
    assert spans.total_s == 2.0 * sum(inside)
    assert all(end_s < begin_s for (_, end_s), (begin_s, _) in pairwise(spans))


def test_changes_that_were_noted_in_another_order_keep_what_they_say() -> None:
    said = [
        made(float(due), LinkState(10 * due, 100 + due), impairments={"delay_ns": due % 3})
        for due in (3, 1, 4, 2)
    ]
    sorted_ones = [tuple(said[at].values()) for at in (1, 3, 0, 2)]
    assert [tuple(change) for change in Changes(said).by_time()] == sorted_ones


def doubts(replay: Replay, under_way: IntervalSet | None = None) -> set[tuple[str, float, float]]:
    spans = IntervalSet([(0.0, replay.seconds)]) if under_way is None else under_way
    return {
        (d.reason, round(d.from_s, 3), round(d.to_s, 3))
        for d in disturbed(replay.history, spans, THRESHOLDS)
    }


def test_what_was_over_before_t0_disturbed_nothing() -> None:
    assert [
        (d.from_s, round(d.to_s, 3))
        for d in _of("stolen", IntervalSet([(-0.3, -0.2), (-0.05, 0.05)]))
    ] == [(0.0, 0.05)]


def test_sound_times_are_not_disturbed_ones() -> None:
    assert {reason for reason, *_ in doubts(clean(2, 5.0))} <= {"late"}


def test_disturbed_times_by_their_reasons() -> None:
    replay = clean(1, 5.0, None)
    replay.host[10] = replace(replay.host[10], stolen_s=0.03)
    for index in (20, 21, 22):
        replay.host[index] = replace(replay.host[index], idle_share=0.01, pressure=0.9)
    replay.host[40] = replace(replay.host[40], backlog_drops=3)
    held_instead(replay.records[ENDS[0]], "queue", 9, 8, 3.0, 3.5)
    assert doubts(replay) == {
        ("stolen", 0.9, 1.1), ("starved", 2.0, 2.3), ("backlog", 4.0, 4.1), ("read_back", 3.0, 3.5),
    }  # fmt: skip
    assert "starved" not in {reason for reason, *_ in doubts(replay, IntervalSet([(0.0, 1.5)]))}


def test_a_late_change_is_a_disturbed_time() -> None:
    replay = clean(2, 5.0, 1.0)
    change = replay.made[ENDS[0]][1]
    replay.made[ENDS[0]][1] = replace(change, applied_s=change.due_s + 0.2)
    assert ("late", 2.0, 2.2) in doubts(replay)


def test_only_times_with_traffic_count_as_starved() -> None:
    replay = clean(1, 5.0)
    replay.host = [
        replace(m, idle_share=0.0, pressure=1.0) for m in replay.host[:25]
    ] + replay.host[25:]
    host = replay.history.host
    assert host.starved_share(IntervalSet([(0.0, 5.0)]), THRESHOLDS) == pytest.approx(
        (5.0, 0.5), rel=0.1
    )
    assert host.starved_share(IntervalSet([(3.0, 5.0)]), THRESHOLDS)[1] < 0.1
    assert host.starved_share(IntervalSet([(0.05, 0.15)]), THRESHOLDS) == (0, 0.0)


def test_what_happens_between_two_readings() -> None:
    before = Reading(100.0, 50.0, 1.0, 10.0, 5)
    after = Reading(100.2, 50.05, 1.01, 10.06, 7)
    found = between(before, after, 1.0, 1.1)
    assert found.idle_share == pytest.approx(0.25)
    assert found.pressure == pytest.approx(0.6)
    assert found.stolen_s == pytest.approx(0.01)
    assert found.backlog_drops == 2
    assert between(before._replace(pressed_s=None), after, 1.0, 1.1).pressure is None
    assert between(before, before, 1.0, 1.1).idle_share == 1.0


def test_the_host_can_be_read() -> None:
    found = reading()
    assert 0 < found.idle_s < found.all_s
    assert found.backlog_drops >= 0


HAPPENING = [NodeChange(1.0, "w", "pause"), NodeChange(2.5, "w", "resume")]
DONE = [
    {
        "node": change.node,
        "action": change.action,
        "due_s": change.time_s,
        "applied_s": change.time_s + 0.01,
    }
    for change in HAPPENING
]


@pytest.mark.parametrize(
    ("made", "until_s", "state"),
    [
        (DONE, 5.0, "valid"),
        (DONE[:1], 5.0, "invalid"),
        (DONE[:1], 3.0, "valid"),  # the end of the pause may be under way
        ([], 5.0, "invalid"),
        ([*DONE, {**DONE[0], "node": "x"}], 5.0, "invalid"),
        ([{**DONE[0], "action": "kill"}, DONE[1]], 5.0, "invalid"),
        ([DONE[0], {**DONE[1], "applied_s": 2.9}], 5.0, "degraded"),
        ([DONE[0], {**DONE[1], "applied_s": 4.0}], 5.0, "invalid"),
    ],
)
def test_what_happens_to_nodes_is_judged(made: list[Any], until_s: float, state: str) -> None:
    found = judge(Evidence(nodes=nodes_seen(HAPPENING, made, until_s)))
    assert found.state == state
    assert (state == "valid") == (not found.reasons)


def test_records_of_nodes_are_found_among_those_of_links() -> None:
    records = [{"kind": "other"}, *({"kind": "node", **done} for done in DONE)]
    found = nodes_seen(HAPPENING, LinkLog(records).nodes, 5.0)
    assert (found.expected, found.applied, found.faults) == (2, 2, [])


def test_where_nothing_is_to_happen_to_nodes_nothing_is_judged() -> None:
    for nodes in (None, nodes_seen([], [], 5.0)):
        assert judge(Evidence(nodes=nodes)).measures["node_events"].startswith("not measured: ")


def full() -> dict[str, Any]:
    """A certificate with something in every place."""
    replay = clean(4, 5.0, 0.25)
    held_instead(replay.records[ENDS[0]], "rate", 5, 6, 1.0, 2.0)
    evidence = replay.evidence()
    links = [{**link, "line_packets": 10, "line_limit": 0} for link in evidence.links]
    evidence = replace(
        evidence,
        links=links,
        losses={str(ENDS[0]): LossSeen(10, 1, 0.1, 0.0, 0.5)},
        paths=[PathSeen("worker-0", None, 0.001, 0.0, 0.0)],
        foreign_drops={"somewhere": 0},
        cpu_starvation=Starved(5.0, 0.0),
        nodes=nodes_seen(HAPPENING, DONE, 5.0),
    )
    times = disturbed(replay.history, IntervalSet([(0.0, 5.0)]), THRESHOLDS)
    return certificate(
        evidence, judge(evidence), replay.history.host, times, dilation=1.0, processors=2
    )


def keys(value: Any) -> Iterator[str]:
    """Every key at every depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def test_every_field_is_explained() -> None:
    text = DOCS.read_text()
    whole = full()
    for free in ("measures", "thresholds"):
        assert f"`{free}`" in text
        del whole[free]
    del whole["host"]["foreign_drops"]["somewhere"]
    whole["links"][0]["changes"]["lateness_ms"] = None
    missing = {key for key in keys(whole) if f"`{key}`" not in text}
    assert missing - {"p50", "p99", "p99_at_least", "max"} == set()


def test_a_certificate_says_what_was_found() -> None:
    found = full()
    assert found["format"] == 1
    assert found["verdict"] == "invalid"
    assert "held a rate of 6 bit/s" in found["reasons"][0]
    first = found["links"][0]
    assert (first["link"], first["direction"]) == ENDS[0]
    assert first["changes"]["expected"] == first["changes"]["applied"] == 19
    assert first["changes"]["faults"] == []
    assert first["line"]["loss"]["high"] == 0.5
    assert found["links"][1]["line"]["loss"] is None
    assert found["ways"][0]["error_ms"] == pytest.approx(1.0)
    assert [d["reason"] for d in found["disturbed"] if d["ends"]] == ["read_back"]
    assert (found["nodes"]["expected"], found["nodes"]["applied"]) == (2, 2)
    assert found["thresholds"] == asdict(THRESHOLDS)
    to_json(found)


@pytest.mark.parametrize(("gone", "wrong"), [(0, 0), (1, 0), (3, 0), (0, 2), (3, 2)])
def test_changes_are_counted_one_by_one(gone: int, wrong: int) -> None:
    """All that are missing have one sentence, each that is wrong has its own."""
    replay, end = clean(5, 5.0, 0.25), ENDS[2]
    for _ in range(gone):
        replay.made[end].pop(4)
        replay.records[end].lateness_s.pop(4)
    for number in range(wrong):
        change = replay.made[end][number]
        replay.made[end][number] = replace(change, rate_bits=change.rate_bits + 8_000_000)
    evidence = replay.evidence()
    links = certificate(
        evidence, judge(evidence), replay.history.host, (), dilation=1.0, processors=2
    )["links"]
    for link in links:
        changes = link["changes"]
        lost, bad = (gone, wrong) if (link["link"], link["direction"]) == end else (0, 0)
        assert (changes["expected"], changes["applied"]) == (19, 19 - lost)
        assert changes["missing"] == lost
        assert len(changes["faults"]) == bool(lost) + bad


def test_a_run_that_did_not_end_has_a_certificate_too() -> None:
    found = certificate(Evidence(), judge(Evidence()), HostLog(()), (), dilation=2.0, processors=1)
    assert (found["links"], found["ways"], found["disturbed"]) == ([], [], [])
    assert found["host"]["idle_share"] is None


def test_the_stolen_share_is_of_the_time_that_was_watched() -> None:
    moments = [Moment(0.1 * n, 0.1 * n + 0.1, 0.05, 1.0, None, 0) for n in range(4)]
    assert HostLog(moments).stolen_share(2) == pytest.approx(0.25)
    assert HostLog(moments[:1]).stolen_share(1) == pytest.approx(0.5)
    assert HostLog([Moment(0.0, 0.001, 0.01, 1.0, None, 0)]).stolen_share(2) == 1.0
    assert HostLog([]).stolen_share(2) == 0.0


def test_the_hosts_figures_are_of_the_moments_that_have_them() -> None:
    moments = [
        Moment(0.0, 0.1, 0.01, 1.0, None, 2),
        Moment(0.1, 0.2, 0.0, 0.4, 0.3, 0),
        Moment(0.2, 0.3, 0.02, 0.1, 0.5, 1),
    ]
    assert HostLog(moments).summary() == pytest.approx(
        {
            "idle_share": 0.5,
            "idle_share_least": 0.1,
            "pressure": 0.4,
            "pressure_most": 0.5,
            "stolen_s": 0.03,
            "backlog_drops": 3,
        }
    )
    unknown = HostLog(moments[:1]).summary()
    assert (unknown["pressure"], unknown["pressure_most"], unknown["idle_share"]) == (None, None, 1)


def test_a_watch_that_cannot_write_says_so_at_its_end(capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(_record: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        HostWatch(time.monotonic_ns(), refuse).stop()
    assert capfd.readouterr() == ("", "")
