"""Every fault that a certificate must notice, in short replays; and that it says nothing of sound ones."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from synthetic_replay import ENDS, MBIT, QUEUE, Replay, clean, held_instead, scaled

from testbed.fidelity.evidence import audit_changes
from testbed.fidelity.reference import RequestedLinks
from testbed.fidelity.verdict import Verdict, judge
from testbed.records.link_log import Changes
from testbed.records.manifest import THRESHOLDS
from testbed.scenario.link_state import LinkDirection, LinkState

SECONDS = (5.0, 10.0)
FAULTY = ENDS[1]


def judged(replay: Replay) -> Verdict:
    return judge(replay.evidence())


def reasons(replay: Replay) -> str:
    found = judged(replay)
    assert found.state != "valid"
    return " ".join(found.reasons)


@pytest.mark.parametrize("every_s", [0.1, 0.25, 1.0, None])
def test_sound_replays_raise_no_alarm(every_s: float | None) -> None:
    found = [judged(clean(seed, SECONDS[seed % 2], every_s)) for seed in range(60)]
    assert [verdict.reasons for verdict in found if verdict.state != "valid"] == []


@pytest.mark.parametrize("seconds", SECONDS)
def test_busy_cores(seconds: float) -> None:
    replay = clean(1, seconds)
    replay.host = [replace_host(moment, 0.0, 0.9) for moment in replay.host]
    assert "no processor was free" in reasons(replay)
    unsaid = clean(1, seconds)
    unsaid.host = [replace_host(moment, 0.0, None) for moment in unsaid.host]
    assert "no processor was free" in reasons(unsaid)
    filled = clean(1, seconds)
    filled.host = [replace_host(moment, 0.0, 0.2) for moment in filled.host]
    assert judged(filled).state == "valid"  # all are at work, but little has to wait


def replace_host(moment, idle_share, pressure):
    return replace(moment, idle_share=idle_share, pressure=pressure)


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_a_rate_that_is_off(factor: float) -> None:
    for seed in range(20):
        by_somebody = clean(seed, 5.0, None)
        record = by_somebody.records[FAULTY]
        asked = record.rates[0][1]
        held_instead(record, "rate", asked, round(asked * factor), 1.0, 5.0)
        assert f"held a rate of {round(asked * factor)} bit/s for {FAULTY}" in reasons(by_somebody)
        unseen = clean(seed, 5.0)
        scaled(unseen.records[FAULTY], factor)
        assert f"{FAULTY} delivered" in reasons(unseen)
        told = clean(seed, 5.0)
        told.made[FAULTY] = [
            replace(c, rate_bits=round(c.rate_bits * factor)) for c in told.made[FAULTY]
        ]
        assert "not to" in reasons(told)


def test_a_rate_that_is_off_from_the_start() -> None:
    replay = clean(3, 5.0, None)
    steps = replay.changes[FAULTY]
    held = [{**FAULTY._asdict(), "rate_bits": round(steps[0][1] * 1.03), "limit_bytes": QUEUE}]
    replay.held = lambda: held  # type: ignore[method-assign]
    assert f"{FAULTY}: at t0 it had" in reasons(replay)


def test_the_agent_stands_still_for_a_while() -> None:
    """From 20 ms before a change on, for 0.1 to 0.5 s: what was due meanwhile comes as it goes on."""
    for seed in range(60):
        random = Random(seed)
        replay = clean(seed, 6.0, 0.25)
        change = random.randrange(2, 20) * 0.25
        resumed = change - 0.02 + random.uniform(0.1, 0.5)
        for end in ENDS:
            delay(replay, end, change, resumed)
        assert "late" in reasons(replay)


def delay(replay: Replay, end, from_s: float, to_s: float) -> None:
    record = replay.records[end]
    for index, made in enumerate(replay.made[end]):
        if from_s <= made.due_s < to_s:
            record.lateness_s[index] = to_s - made.due_s
            replay.made[end][index] = replace(made, applied_s=to_s)
    record.unwatched_s += to_s - from_s - 0.03


def test_changes_that_are_all_late() -> None:
    replay = clean(5, 5.0)
    record = replay.records[FAULTY]
    record.lateness_s = [late + 0.015 for late in record.lateness_s]
    assert f"changes of {FAULTY} came at least" in reasons(replay)
    few = clean(5, 5.0, 1.0)
    few.records[FAULTY].lateness_s = [0.02] * 4
    assert judged(few).measures["lateness_p99_ms"]["state"] == "degraded"


def test_changes_that_the_agent_was_told_too_late() -> None:
    """It says itself that it was on time; the scenario knows better."""
    replay = clean(6, 5.0)
    replay.made[FAULTY] = [
        replace(made, due_s=made.due_s + 0.03, applied_s=made.applied_s + 0.03)
        for made in replay.made[FAULTY]
    ]
    assert "that nobody asked for" in reasons(replay)


def test_a_dropped_change() -> None:
    for seed in range(30):
        replay = clean(seed, SECONDS[seed % 2], 0.25)
        lost = Random(seed).randrange(len(replay.made[FAULTY]))
        gone = replay.made[FAULTY].pop(lost)
        del replay.records[FAULTY].lateness_s[lost]
        found = judged(replay)
        assert found.state == "invalid"
        assert f"{FAULTY}: 1 of" in found.reasons[0]
        assert f"due at {gone.due_s:.3f} s" in found.reasons[0]


def test_changes_that_nobody_asked_for() -> None:
    end = LinkDirection("a", "up")
    shape = LinkState(10**7, 9000)
    asked = RequestedLinks({end: shape}, [])
    extra = {"due_s": 3.0, "applied_s": 3.0, "rate_bits": 10**7, "queue_bytes": 9000}
    assert audit_changes(asked, {end: Changes([extra])}, {end: 5.0})[end].faults == [
        "a change was made for 3.000 s that nobody asked for"
    ]
    assert audit_changes(asked, {end: Changes()}, {end: 5.0})[end].faults == []


def test_a_change_that_somebody_undoes() -> None:
    replay = clean(7, 5.0, 0.25)
    held_instead(replay.records[FAULTY], "rate", 90 * MBIT, 50 * MBIT, 1.004, 1.25)
    found = judged(replay)
    assert found.state == "invalid"
    assert found.measures["read_back"]["place"] == str(FAULTY)


def test_a_wrong_queue() -> None:
    replay = clean(8, 5.0, None)
    held_instead(replay.records[FAULTY], "queue", QUEUE, QUEUE // 2, 0.4, 5.0)
    assert f"held a queue of {QUEUE // 2} B for {FAULTY}, not the queue of {QUEUE} B" in reasons(
        replay
    )
    changed = clean(8, 5.0)
    changed.made[FAULTY][3] = replace(changed.made[FAULTY][3], queue_bytes=QUEUE // 2)
    assert judged(changed).state == "invalid"


def test_a_processor_that_is_taken_away_is_judged_by_its_share() -> None:
    replay = clean(9, 5.0)
    replay.host[10] = replace(replay.host[10], stolen_s=0.05)
    assert judged(replay).state == "valid"
    replay.host[11] = replace(replay.host[11], stolen_s=0.3)
    assert "taken by others" in reasons(replay)


def test_what_nobody_looked_at_is_not_vouched_for() -> None:
    replay = clean(10, 5.0, None)
    replay.records[FAULTY].unwatched_s = 0.5
    assert f"nobody looked at {FAULTY} for 0.50 s" in reasons(replay)


def test_limits_are_between_what_is_sound_and_what_is_not() -> None:
    assert THRESHOLDS.ratio_deviation < 0.03
    assert THRESHOLDS.lateness_max_ms < 80
