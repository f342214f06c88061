"""The asynchronous server in virtual time: who is applied when, on what, and who has to wait."""

from __future__ import annotations

from typing import Any

import pytest
from apart_rig import Apart
from not_empty import not_empty
from virtual_setup import Played

from testbed.compatibility import resolve
from testbed.errors import InputError, NodeLost
from testbed.node import Message
from testbed.scenario.model import Derived, Optimizer, Stop

PLAIN = Optimizer(lr=0.1)


def sequence(played: Played) -> tuple[list[int], list[int], list[float]]:
    """Ranks of the senders, staleness and times of application, in order."""
    found = played.of("server", "gradient")
    assert [one["version"] for one in found] == list(range(1, len(found) + 1))
    return (
        [one["sender"] - 1 for one in found],
        [one["staleness"] for one in found],
        [round(one["applied_s"], 2) for one in found],
    )


def test_each_gradient_is_applied_when_it_comes() -> None:
    played = Apart("asgd", [1.0, 2.6], stop=Stop(steps=4)).play()
    ranks, staleness, times = sequence(played)
    assert times == [1.0, 2.0, 2.6, 3.0, 4.0, 5.0, 5.2, 6.0]
    assert ranks == [0, 0, 1, 0, 0, 0, 1, 0]
    assert staleness == [0, 0, 2, 1, 0, 0, 3, 1]
    own = [one["own_step"] for one in played.of("server", "gradient")]
    assert own == [1, 2, 1, 3, 4, 5, 2, 6]
    # worker-1 was computing when the last gradient came: its own was of no use any more
    assert [one["seen"]["sender"] for one in played.of("server", "dropped")] == [2]
    assert played.summaries["server"]["end_s"] == pytest.approx(6.0, abs=0.01)


@pytest.mark.parametrize("algorithm", ["asgd", "asgd-s1"])
def test_bytes_are_the_same_at_both_ends(algorithm: str) -> None:
    played = Apart(algorithm, [1.0, 2.6], stop=Stop(steps=4)).play()
    workers = [played.summaries[f"worker-{rank}"] for rank in range(2)]
    server = played.summaries["server"]
    assert server["bytes_down"] == sum(worker["bytes_down"] for worker in workers) > 0
    gradients = [one["bytes"] for one in played.of("server", "gradient")]
    gradients += [one["seen"]["bytes"] for one in played.of("server", "dropped")]
    assert sum(gradients) == sum(worker["bytes_up"] for worker in workers)
    assert server["bytes_received"] == sum(worker["bytes_sent"] for worker in workers)
    late = [(one["seen"]["sender"], one["step"]) for one in played.of("server", "dropped")]
    assert len(set(late)) == len(late), "each is told once"


def test_nobody_is_further_ahead_than_the_bound() -> None:
    ranks, staleness, times = sequence(Apart("asgd-s1", [1.0, 2.6], stop=Stop(steps=4)).play())
    assert ranks == [0, 0, 1, 0, 1, 0, 1, 0]
    assert times == [1.0, 2.0, 2.6, 3.6, 5.2, 6.2, 7.8, 8.8]
    assert staleness == [0, 0, 2, 0, 1, 0, 1, 0]


def test_a_bound_of_0_is_lock_step() -> None:
    together = {"stop": Stop(steps=8), "evaluate_every": 4}
    bound = Apart("asgd-s0", [1.0, 2.6], optimizer=PLAIN, **together).play()
    ranks, staleness, times = sequence(bound)
    assert (ranks, staleness) == ([0, 1] * 8, [0, 1] * 8)
    assert times[1::2] == [round(2.6 * step, 2) for step in range(1, 9)]
    # two gradients after each other are their mean at twice the rate, but for the rounding
    mean = Apart("none", [1.0, 2.6], optimizer=Optimizer(lr=0.2), **together).play()
    for ours, theirs in not_empty(
        zip(*(p.of("server", "evaluation") for p in (bound, mean)), strict=True)
    ):
        assert ours["step"] == theirs["step"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["time_s"] == pytest.approx(theirs["time_s"], abs=0.01)


def test_steps_and_evaluations_are_counted_in_gradients_of_all() -> None:
    played = Apart("asgd", [1.0, 2.6], stop=Stop(steps=6), evaluate_every=2).play()
    found = played.of("server", "gradient")
    evaluations = played.of("server", "evaluation")
    assert [one["step"] for one in evaluations] == [2, 4, 6]
    for one in evaluations:
        assert one["time_s"] == found[2 * one["step"] - 1]["applied_s"]
    assert played.summaries["server"]["steps"] == 6
    assert played.summaries["worker-0"]["parameters"] is None


def test_a_run_stops_at_its_accuracy() -> None:
    played = Apart("asgd", [0.2, 0.3], stop=Stop(steps=200, accuracy=0.6), evaluate_every=2).play()
    reached = [e for e in played.of("server", "evaluation") if e["accuracy"] >= 0.6]
    assert reached and reached[0]["step"] <= played.summaries["server"]["steps"] < 200


def test_parameters_within_a_step_are_those_of_no_step() -> None:
    # the accuracy of step 1 is known when the third of two gradients a step comes
    soon = Stop(steps=9, accuracy=0.01)
    within = Apart("asgd", [1.0, 2.6], stop=soon, evaluate_every=1).play()
    assert len(within.of("server", "gradient")) == 3
    assert within.summaries["server"]["steps"] == 1
    assert within.summaries["server"]["parameters"] is None
    whole = Apart("asgd", [1.0, 2.6], stop=Stop(steps=1)).play()
    assert whole.summaries["server"]["parameters"]


@pytest.mark.parametrize("algorithm", ["asgd", "asgd-s2", "backup-1"])
def test_two_runs_are_identical(algorithm: str) -> None:
    first, second = (Apart(algorithm, [0.3, 0.5, 0.7], stop=Stop(steps=6)).play() for _ in "12")
    assert first.records == second.records
    assert first.summaries == second.summaries


@pytest.mark.parametrize(("down", "size"), [("fp32", 4), ("fp16", 2), ("bf16", 2)])
def test_parameters_come_down_as_the_row_writes_them(down: str, size: int) -> None:
    stage = Apart("asgd", [0.3, 0.5], stop=Stop(steps=4))
    for role in stage.roles.values():
        object.__setattr__(role._job, "algorithm", derived(down=down))  # type: ignore[attr-defined]
    step = stage.play().of("worker-0", "step")[0]
    assert step["bytes_down"] == pytest.approx(size * step["size"], rel=0.01)


def test_a_silent_worker_is_gone_on_without() -> None:
    stage = Apart("asgd-s0", [0.3, 0.3], stop=Stop(steps=5))
    endpoint = stage.nodes["worker-1"].endpoint
    send = endpoint.send

    def silent_from_three(destinations: list[int], message: Message) -> int:
        if stage.clock.now > 0.8:
            stage.clock.kill("worker-1")
            stage.clock.sleep_until(1e6)
        return send(destinations, message)

    endpoint.send = silent_from_three  # type: ignore[assignment,method-assign]
    played = stage.play()
    (lost,) = played.of("server", "lost")
    assert (lost["lost"], lost["step"]) == ("worker-1", 3)
    assert lost["time_s"] > 10  # the bound had the other wait until it was given up
    assert len(played.of("server", "gradient")) == 10


@pytest.mark.parametrize("bound", [0, 3, 2**31 - 1])
def test_a_silent_server_is_not_waited_for_by_the_bound(bound: int) -> None:
    """One that is held waits for one step of the slowest, whatever the bound."""
    stage = Apart(f"asgd-s{bound}", [0.3, 0.3], stop=Stop(steps=5))
    stage.clock.at(0.1, stage.clock.kill, "server")
    with pytest.raises(NodeLost, match=r"'server'.*nothing was received for"):
        stage.play()
    patience_s = 2.25 * (stage.roles["worker-0"]._job.peer_timeout_s + 0.3)  # type: ignore[attr-defined]
    assert stage.clock.now < 1.0 + patience_s


def test_the_last_one_must_not_be_lost() -> None:
    stage = Apart("asgd", [0.3], stop=Stop(steps=5))
    stage.network.clock.at(1.0, stage.clock.kill, "worker-0")
    with pytest.raises(NodeLost, match="'worker-0' was lost at step"):
        stage.play()


def derived(**changes: Any) -> Any:
    """``asgd`` with changes."""
    return resolve(Derived(**{"name": "changed", "from": "asgd", **changes}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"down": "int8"}, "cannot write them as 'int8'"),
        ({"down_memory": "feedback"}, "with memory 'feedback'"),
        ({"down_density": 0.1}, "and density 0.1"),
        ({"agree": True}, "no step at which all workers could agree"),
        ({"exchange_options": {"bound": -1}}, "bound: .*greater than or equal to 0"),
        ({"exchange": "ps-backup", "exchange_options": {"b": 1}}, "unknown option 'b'"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        derived(**changes)
