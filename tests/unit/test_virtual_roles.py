"""The real worker and server on a virtual clock: one machine's seconds decide nothing here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from math import ceil
from typing import Any

import pytest
import torch
from not_empty import not_empty
from virtual_setup import ALGORITHMS, LINK, PACE_S, Played, Stage

from testbed.control.adatopk import AdaTopK
from testbed.control.base import controller_seed, replay_decisions
from testbed.errors import NodeLost, WireError
from testbed.node import Kind, Message
from testbed.records.events import (
    PHASES,
    EpochRecord,
    EvaluationRecord,
    RoundRecord,
    StepRecord,
    phase_s,
)

torch.set_num_threads(1)
MICROSECOND = 1e-6


def on_the_wire(body: int) -> int:
    """Bits of a frame with ``body`` bytes, worked out apart from the model under test."""
    frame = 40 + body
    return 8 * (frame + 66 * ceil(frame / 1448))


def transfer(body: int) -> float:
    """Seconds from the first bit sent to the last one received. The uplink is the slower one, so that
    only the last packet is still to cross the downlink when the uplink is done."""
    last_packet = 8 * ((40 + body - 1) % 1448 + 1 + 66)
    return on_the_wire(body) / LINK.up_bits + last_packet / LINK.down_bits + 2 * LINK.latency_s


@pytest.fixture(scope="module", params=ALGORITHMS)
def played(request: pytest.FixtureRequest) -> Played:
    return Stage(2, request.param).play()


def test_the_loss_falls_and_accuracy_rises(played: Played) -> None:
    losses = [record["loss"] for record in played.of("worker-0", "step")]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    assert played.summaries["server"]["accuracy"] > 0.75


def test_records_are_complete(played: Played) -> None:
    expected = {"step": StepRecord, "round": RoundRecord, "evaluation": EvaluationRecord, "epoch": EpochRecord}  # fmt: skip
    for records in played.records.values():
        for record in records:
            names = {field.name for field in fields(expected[record["kind"]])}
            assert set(record) == {"v", "kind", *names}
    for worker in ("worker-0", "worker-1"):
        assert [record["step"] for record in played.of(worker, "step")] == list(range(1, 31))
        assert [record["epoch"] for record in played.of(worker, "epoch")] == [1]
    assert [record["step"] for record in played.of("server", "round")] == list(range(1, 31))
    evaluations = played.of("server", "evaluation")
    assert [(e["step"], e["final"]) for e in evaluations] == [(10, False), (20, False), (30, True)]


def test_phases_add_up_to_the_step(played: Played) -> None:
    for record in not_empty(played.of("worker-0", "step")):
        assert all(phase_s(record, phase) >= 0 for phase in PHASES)
        total = sum(phase_s(record, phase) for phase in PHASES)
        assert total == pytest.approx(record["end_s"] - record["start_s"], abs=MICROSECOND)
        assert record["delay_s"] == pytest.approx(
            record["send_s"] + record["wait_s"] + record["receive_s"], abs=MICROSECOND
        )


def test_replicas_are_identical(played: Played) -> None:
    assert len({summary["parameters"] for summary in played.summaries.values()}) == 1
    epochs = [[r["parameters"] for r in played.of(n, "epoch")] for n in played.records]
    assert epochs[0] == epochs[1] == epochs[2]


def test_bytes_agree_on_both_sides(played: Played) -> None:
    server = played.summaries["server"]
    workers = [played.summaries[name] for name in ("worker-0", "worker-1")]
    assert server["bytes_received"] == sum(worker["bytes_sent"] for worker in workers)
    assert server["bytes_sent"] == sum(worker["bytes_received"] for worker in workers)
    assert server["bytes_down"] == sum(worker["bytes_down"] for worker in workers)
    for worker in workers:  # HELLO and BYE beside the gradients, BYE beside the updates
        assert worker["bytes_sent"] == worker["bytes_up"] + 80
        assert worker["bytes_received"] == worker["bytes_down"] + 40


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_runs_are_identical(algorithm: str) -> None:
    first, second = Stage(2, algorithm).play(), Stage(2, algorithm).play()
    assert first.records == second.records
    assert first.summaries == second.summaries


def test_another_seed_is_another_run() -> None:
    one, two = Stage(1, "topk", seed=1).play(), Stage(1, "topk", seed=2).play()
    crcs = [[record["payload_crc"] for record in p.of("worker-0", "step")] for p in (one, two)]
    assert not set(crcs[0]) & set(crcs[1])


@pytest.mark.parametrize("algorithm", ["none", "topk"])
def test_a_step_takes_pace_and_transfers(algorithm: str) -> None:
    played = Stage(1, algorithm).play()
    for record in not_empty(played.of("worker-0", "step")[:-1]):  # a BYE precedes the last update
        up, down = record["bytes_up"] - 40, record["bytes_down"] - 40
        expected = PACE_S + transfer(up) + transfer(down)
        assert record["end_s"] - record["start_s"] == pytest.approx(expected, abs=MICROSECOND)


def test_workers_share_the_servers_link() -> None:
    played = Stage(2, "none").play()
    record = played.of("server", "round")[0]
    first, second = sorted(message["last_s"] for message in record["messages"])
    bits = on_the_wire(int(record["messages"][0]["bytes"]) - 40)
    assert first - PACE_S > bits / LINK.up_bits
    assert second - PACE_S < 2 * bits / LINK.up_bits
    # both replies share the server's uplink, and end almost together
    replies = [played.of(worker, "step")[0]["arrived_s"] for worker in ("worker-0", "worker-1")]
    took = [reply - record["send_start_s"] for reply in replies]
    assert max(took) == pytest.approx(2 * bits / LINK.up_bits, rel=0.02)
    assert min(took) > 0.8 * max(took)


def test_adatopk_replays_to_the_recorded_densities() -> None:
    played = Stage(2, "adatopk").play()
    for rank in (0, 1):
        records = played.of(f"worker-{rank}", "step")
        assert replay_decisions(
            records, lambda rank=rank: AdaTopK(seed=controller_seed(1, rank))
        ).exact


def test_dilation_scales_what_the_controller_sees() -> None:
    stage = Stage(1, "none", LINK)
    for role in stage.roles.values():
        object.__setattr__(role._job, "dilation", 4.0)
    record = stage.play().of("worker-0", "step")[3]
    assert record["controller"]["delay_s"] == pytest.approx(record["delay_s"] / 4)
    assert record["controller"]["link_rate_bits"] == 4 * LINK.up_bits
    took_s = record["end_s"] - record["start_s"]
    assert record["controller"]["step_s"] == pytest.approx(took_s / 4)


def test_a_run_stops_one_step_after_its_accuracy() -> None:
    stop = {"steps": 200, "accuracy": 0.7}
    played = Stage(1, "none", stop=stop, evaluate_every=5).play()
    reached = [e for e in played.of("server", "evaluation") if e["accuracy"] >= 0.7]
    assert played.summaries["worker-0"]["steps"] == reached[0]["step"] + 1 < 200


def test_a_run_stops_after_its_epochs() -> None:
    played = Stage(2, "none", stop={"epochs": 2}, batch=128).play()
    assert played.summaries["worker-1"]["steps"] == 2 * (1438 // 256)
    assert [record["epoch"] for record in played.of("server", "epoch")] == [1, 2]


def test_a_silent_worker_is_named_with_its_step() -> None:
    stage = Stage(2, "none")
    endpoint = stage.endpoint("worker-1")
    send = endpoint.send

    def stop_at_four(destinations: list[int], message: Message) -> int:
        if message.step == 4:
            stage.clock.sleep_until(1e6)
        return send(destinations, message)

    endpoint.send = stop_at_four  # type: ignore[assignment,method-assign]
    with pytest.raises(NodeLost, match=r"'worker-1' was lost at step 4") as lost:
        stage.play()
    assert (lost.value.node, lost.value.step) == ("worker-1", 4)
    assert [r["step"] for r in stage.nodes["worker-0"].records if r["kind"] == "step"] == [1, 2, 3]


def test_a_worker_that_never_greets_is_named() -> None:
    stage = Stage(2, "none")
    stage.endpoint("worker-0").send = lambda *_: 0  # type: ignore[method-assign]
    with pytest.raises(NodeLost, match="'worker-0' was lost before its first step"):
        stage.play()


def test_a_goodbye_before_the_end_is_a_loss() -> None:
    stage = Stage(1, "none")
    endpoint = stage.endpoint("worker-0")
    send = endpoint.send

    def leave(destinations: list[int], message: Message) -> int:
        kind = Kind.BYE if message.step == 2 else message.kind
        return send(destinations, Message(kind, message.step, 0, message.sender, message.body))

    endpoint.send = leave  # type: ignore[assignment,method-assign]
    with pytest.raises(NodeLost, match="'worker-0' was lost at step 2: it said goodbye"):
        stage.play()


@pytest.mark.parametrize(
    ("step", "body", "message"),
    [
        (5, None, r"worker-1 sent GRADIENT of step 5, bucket 0, while GRADIENT of step 2"),
        (2, b"rubbish", r"gradient of worker-1, step 2: a payload has at least"),
    ],
)
def test_a_wrong_message_is_an_error_that_names_its_sender(
    step: int, body: bytes | None, message: str
) -> None:
    stage = Stage(2, "none")
    endpoint = stage.endpoint("worker-1")
    send = endpoint.send

    def garble(destinations: list[int], given: Message) -> int:
        if given.step == 2:
            given = Message(given.kind, step, 0, given.sender, body or given.body)
        return send(destinations, given)

    endpoint.send = garble  # type: ignore[assignment,method-assign]
    with pytest.raises(WireError, match=message):
        stage.play()


def test_preparing_changes_nothing() -> None:
    stage = Stage(1, "topk")
    role = stage.roles["worker-0"]
    states = []

    def prepare_twice() -> None:
        role._node.endpoint.send = lambda *_: 0  # type: ignore[method-assign]
        for _ in range(2):
            role.prepare()
            replica = role._replica
            states.append((replica.fingerprint(), float(replica.flat.gradients.abs().sum())))

    before = role._node.rng.getstate()
    stage.clock.run({"worker-0": prepare_twice})
    assert states[0] == states[1]
    assert states[0][1] == 0.0
    assert role._node.rng.getstate() == before


def test_an_evaluation_after_every_step_loses_none() -> None:
    played = Stage(1, "none", evaluate_every=1, stop={"steps": 12}).play()
    evaluations = played.of("server", "evaluation")
    assert [e["step"] for e in evaluations] == list(range(1, 13))
    applied = [r["send_end_s"] for r in played.of("server", "round")]
    assert [e["time_s"] for e in evaluations] == applied


def test_an_evaluation_that_takes_its_time_is_of_when_its_step_was_applied() -> None:
    """Each takes two steps and a half here, and the last one waits for that before."""
    stage = Stage(1, "none", evaluate_every=3, stop={"steps": 8})
    node, ended_s = stage.nodes["server"], list[float]()
    evaluate = node.background

    def slowly(work: Callable[[], Any]) -> Any:
        node.sleep_until(node.now() + 2.5 * PACE_S)
        ended_s.append(node.now())
        return evaluate(work)

    node.background = slowly  # type: ignore[method-assign,assignment]
    played = stage.play()
    applied = {r["step"]: r["send_end_s"] for r in played.of("server", "round")}
    found = [(e["step"], e["time_s"], e["final"]) for e in played.of("server", "evaluation")]
    assert found == [(3, applied[3], False), (6, applied[6], False), (8, applied[8], True)]
    assert len(ended_s) == 2 and ended_s[1] > applied[8], "while the run went on"
