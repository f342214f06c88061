"""Backup workers in virtual time: whose gradients count, and who takes in what."""

from __future__ import annotations

import pytest
from apart_rig import Apart
from not_empty import not_empty

from testbed.errors import NodeLost
from testbed.scenario.model import Optimizer, ScheduleModel, Stop

PACES_S = [1.0, 1.3, 3.2]


def test_a_step_waits_for_the_first_and_drops_the_others() -> None:
    played = Apart("backup-1", PACES_S, stop=Stop(steps=4)).play()
    rounds = played.of("server", "round")
    assert [[m["sender"] - 1 for m in round_["messages"]] for round_ in rounds] == [[0, 1]] * 4
    ends = [round(round_["send_start_s"], 2) for round_ in rounds]
    assert ends == [1.3, 2.6, 3.9, 5.2]
    late = [(one["seen"]["sender"] - 1, one["step"]) for one in played.of("server", "dropped")]
    assert late == [(2, 1), (2, 3)]


def test_who_is_behind_goes_on_at_the_newest_step() -> None:
    played = Apart("backup-1", PACES_S, stop=Stop(steps=4)).play()
    steps = [(one["step"], one["skipped"]) for one in played.of("worker-2", "step")]
    assert steps == [(1, 1), (3, 1)]
    summary = played.summaries["worker-2"]
    assert (summary["steps"], summary["made"]) == (4, 2)
    assert [one["step"] for one in played.of("worker-0", "step")] == [1, 2, 3, 4]


def test_bytes_of_all_updates_that_came_together_are_counted() -> None:
    """Also of those that somebody who is behind takes in at once, and of gradients that came too late."""
    played = Apart("backup-1", PACES_S, stop=Stop(steps=9)).play()
    workers = [f"worker-{rank}" for rank in range(3)]
    assert any(one["skipped"] > 1 for one in played.of("worker-2", "step"))
    for way in ("bytes_up", "bytes_down"):
        for name in workers:
            recorded = sum(one[way] for one in played.of(name, "step"))
            assert played.summaries[name][way] == recorded > 0
    down = [played.summaries[name]["bytes_down"] for name in workers]
    rounds = played.of("server", "round")
    assert sum(down) == sum(round_["bytes_down"] for round_ in rounds)
    assert len(set(down)) == 1, "every worker was sent every update"
    assert played.summaries["server"]["bytes_down"] == sum(down)
    seen = [message for round_ in rounds for message in round_["messages"]]
    seen += [one["seen"] for one in played.of("server", "dropped")]
    assert sum(message["bytes"] for message in seen) == sum(
        played.summaries[name]["bytes_up"] for name in workers
    )


def test_all_replicas_stay_identical() -> None:
    played = Apart("backup-1", PACES_S, stop=Stop(steps=9)).play()
    assert len({summary["parameters"] for summary in played.summaries.values()}) == 1


def test_replicas_stay_identical_when_the_learning_rate_changes_meanwhile() -> None:
    """Who is behind takes an update of the epoch before with the rate of that epoch."""
    falls = Optimizer(schedule=ScheduleModel(name="step", every=1, gamma=0.1))
    played = Apart("backup-1", PACES_S, stop=Stop(steps=9), batch=256, optimizer=falls).play()
    late = [(one["step"], one["skipped"], one["epoch"]) for one in played.of("worker-2", "step")]
    epochs = {one["step"]: one["epoch"] for one in played.of("worker-0", "step")}
    assert any(skipped and epochs[step + skipped] > epoch for step, skipped, epoch in late)
    assert len({summary["parameters"] for summary in played.summaries.values()}) == 1


def test_without_stragglers_it_is_the_mean_of_the_first_by_rank() -> None:
    # worker-1 is a hair slower, and so never in time: the others train as if they were alone
    played = Apart("backup-1", [1.0, 1.001, 1.0], stop=Stop(steps=3)).play()
    for round_ in not_empty(played.of("server", "round")):
        assert [m["sender"] for m in round_["messages"]] == [1, 3]


def test_as_many_may_be_lost_as_are_not_waited_for() -> None:
    stage = Apart("backup-1", [1.0, 1.0, 1.0], stop=Stop(steps=6))
    stage.clock.at(2.5, stage.clock.kill, "worker-0")
    for endpoint in (node.endpoint for node in stage.nodes.values()):
        stage.clock.at(2.5, endpoint.lose, 1, "worker-0")
    played = stage.play()
    assert [one["lost"] for one in played.of("server", "lost")] == ["worker-0"]
    assert played.summaries["server"]["steps"] == 6
    assert "worker-0" not in played.summaries


def test_one_more_is_missed() -> None:
    stage = Apart("backup-1", [1.0, 1.0, 1.0], stop=Stop(steps=6))
    for name in ("worker-0", "worker-1"):
        stage.clock.at(2.5, stage.clock.kill, name)
    with pytest.raises(NodeLost, match=r"'worker-\d' was lost at step 3"):
        stage.play()
