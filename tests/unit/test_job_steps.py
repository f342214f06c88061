"""Steps that a job marked: of each process, and of the job."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.records.job_steps import (
    JobStep,
    SocketRecord,
    job_steps,
    last_values,
    marked_steps,
    round_trip_s,
)


def mark(rank: int, what: str, time_s: float, **more: Any) -> dict[str, Any]:
    return {"kind": "mark", "node": f"worker-{rank}", "rank": rank, "local_rank": 0, "what": what, "name": None,
            "number": None, "time_s": time_s, "values": {}, **more}  # fmt: skip


def steps_at(rank: int, *times_s: float, first: int = 1, **values: float) -> list[dict[str, Any]]:
    return [
        mark(rank, "step", at, number=number, values=values)
        for number, at in enumerate(times_s, start=first)
    ]


def ended(rank: int, at_s: float) -> dict[str, Any]:
    return {"kind": "process", "rank": rank, "ended_s": at_s}


def test_steps_follow_one_another_from_the_begin() -> None:
    found = marked_steps([mark(0, "begin", 0.5), *steps_at(0, 1.5, 3.0)])
    assert [(step.number, step.start_s, step.end_s) for step in found] == [
        (1, 0.5, 1.5), (2, 1.5, 3.0),
    ]  # fmt: skip


def test_a_process_that_was_ready_before_t0_began_at_t0() -> None:
    assert marked_steps([mark(0, "begin", -2.0), *steps_at(0, 1.0)])[0].start_s == 0.0


def test_without_a_begin_the_first_phase_is_one() -> None:
    phase = mark(0, "phase", 0.4, name="forward")
    assert marked_steps([phase, *steps_at(0, 1.0)])[0].start_s == 0.4
    assert marked_steps(steps_at(0, 1.0, 2.0))[0].start_s is None


def test_phases_add_up_and_end_where_the_next_begins() -> None:
    marks = [
        mark(0, "begin", 0.0),
        mark(0, "phase", 0.1, name="forward"),
        mark(0, "phase", 0.4, name="backward"),
        mark(0, "end", 0.6, name="backward"),
        mark(0, "phase", 0.7, name="forward"),
        *steps_at(0, 1.0),
        mark(0, "phase", 1.2, name="forward"),
        *steps_at(0, 2.0, first=2),
    ]
    first, second = marked_steps(marks)
    assert first.phases_s == pytest.approx({"forward": 0.6, "backward": 0.2})
    assert second.phases_s == pytest.approx({"forward": 0.8})


def test_phases_of_before_the_begin_are_of_no_step() -> None:
    """Whoever is waited for has loaded data before: that is none of the first step's time."""
    marks = [
        mark(0, "phase", -3.0, name="load"),
        mark(0, "end", -1.5, name="load"),
        mark(0, "phase", -1.0, name="warm up"),
        mark(0, "begin", 0.5),
        mark(0, "phase", 0.6, name="forward"),
        *steps_at(0, 1.0),
    ]
    (step,) = marked_steps(marks)
    assert (step.start_s, step.phases_s) == (0.5, pytest.approx({"forward": 0.4}))


def test_values_that_are_not_finite_are_not_told() -> None:
    (step,) = marked_steps([mark(0, "step", 1.0, number=1, values={"loss": None, "norm": 2.0})])
    assert step.values == {"norm": 2.0}


@pytest.mark.parametrize("first", [1, 2])
def test_a_process_that_began_anew_has_no_step_from_before(first: int) -> None:
    """Also where it begins with the step that it ended last."""
    found = marked_steps(steps_at(0, 1.0, 2.0) + steps_at(0, 9.0, 10.0, first=first))
    assert [step.start_s for step in found] == [None, 1.0, None, 9.0]


def test_a_jobs_step_ends_with_its_last_process() -> None:
    marks = [mark(0, "begin", 0.0), *steps_at(0, 1.0, 2.0, loss=2.0)]
    marks += [mark(1, "begin", 0.1), *steps_at(1, 1.4, 2.2, loss=4.0)]
    found = job_steps(marked_steps(marks))
    assert [(step.start_s, step.end_s) for step in found] == [(0.0, 1.4), (1.4, 2.2)]
    assert found[0].values == {"loss": 3.0}
    assert last_values(found) == {"loss": 3.0}


def test_a_step_that_someone_was_still_at_is_left_out() -> None:
    steps = marked_steps(steps_at(0, 1.0, 2.0, 3.0) + steps_at(1, 1.1, 2.1))
    assert len(job_steps(steps)) == 2
    assert len(job_steps(steps, [ended(1, 5.0)])) == 2


def test_who_has_ended_is_not_waited_for() -> None:
    steps = marked_steps(steps_at(0, 1.0, 2.0, 3.0) + steps_at(1, 1.1))
    assert len(job_steps(steps, [ended(1, 1.3)])) == 3


def test_steps_of_which_the_begin_is_unknown_have_no_length() -> None:
    first, second = job_steps(marked_steps(steps_at(0, 1.0, 3.0)))
    assert (first.length_s, second.length_s) == (None, 2.0)
    assert JobStep(1, 1.0, 4.0, {}, {}).length_s == 3.0


def test_steps_that_only_one_process_marks_are_the_jobs() -> None:
    assert [step.number for step in job_steps(marked_steps(steps_at(2, 1.0, 2.0)))] == [1, 2]


def connection(sent: int, rtt_us: int | None, interface: str = "data") -> dict[str, Any]:
    return SocketRecord("worker-0", "10.0.0.1:1", "10.0.0.2:2", "worker-1", interface, sent, 1, 9, 0, 0, rtt_us, None).to_json()  # fmt: skip


def test_the_way_to_a_peer_and_back_is_that_of_connections_that_carried_much() -> None:
    assert round_trip_s([]) == 0.0
    much, more = connection(900_000, 20_000), connection(1_000_000, 40_000)
    others = [connection(10, 90_000), connection(1_000_000, None), connection(10**9, 5, "loopback")]
    assert round_trip_s([more, much, *others]) == 0.04
    assert round_trip_s([connection(10, None)]) == 0.0
