"""A node that is lost, or talks nonsense, while buckets travel: the run ends with the real reason, whatever anybody was doing."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from overlap_rig import BUCKETS, DENSE, PACE_S, TIMEOUT_S, TOPK, Alter, Stage, overlapped

from testbed.algorithm import Algorithm
from testbed.errors import GradientError, NodeLost, WireError
from testbed.node import Kind, Message

torch.set_num_threads(1)
STEP = 2
MOMENTS = 12
"""Of a step."""
WITHIN_S = 2.0
"""Beyond the patience: what was under way comes first."""
PHASES = {"gathering", "receiving", "sending"}


@functools.cache
def moment(number: int) -> float:
    """Virtual seconds: the moments are spread evenly over worker 0's step, and over the forward pass of the one after it."""
    stage = Stage(overlapped())
    step, later = stage.play().of("worker-0", "step")[STEP - 1 : STEP + 1]
    begin, end = step["start_s"], later["start_s"] + PACE_S / 3
    return float(stage.network.t0_s + begin + (end - begin) * (number + 0.5) / MOMENTS)


# every day every other moment
@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.nightly] * (n % 2)) for n in range(MOMENTS)]
)
@pytest.mark.parametrize("victim", ["worker-1", "server"])
@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_who_is_lost_is_named_whenever_it_happens(fault: str, victim: str, number: int) -> None:
    stage, at_s = Stage(overlapped()), moment(number)
    (stage.kill if fault == "killed" else stage.pause)(victim, at_s)
    with pytest.raises(NodeLost) as lost:
        stage.play()
    assert lost.value.node == victim
    assert lost.value.step in (STEP, STEP + 1)
    assert lost.value.phase in PHASES
    patience_s = 0.0 if fault == "killed" else 1.25 * (TIMEOUT_S + PACE_S)
    assert stage.clock.now - at_s < patience_s + WITHIN_S


@pytest.mark.parametrize("bucket", range(BUCKETS))
def test_a_worker_that_never_sends_a_bucket_is_named(bucket: int) -> None:
    stage = Stage(overlapped())
    stage.alter(
        "worker-1",
        lambda m: [] if (m.kind, m.step, m.bucket) == (Kind.GRADIENT, STEP, bucket) else [m],
    )
    with pytest.raises(NodeLost, match=f"'worker-1' was lost at step {STEP}, while gathering"):
        stage.play()


def sent(kind: Kind, bucket: int, *instead: dict[str, object]) -> Alter:
    """Instead of a bucket's message of ``STEP``, copies of it with other fields."""

    def alter(message: Message) -> list[Message]:
        if (message.kind, message.step, message.bucket) != (kind, STEP, bucket):
            return [message]
        return [replace(message, **fields) for fields in instead]  # type: ignore[arg-type]

    return alter


GRADIENTS = {
    "twice": (1, [{}, {}], "worker-1 sent GRADIENT of step 2, bucket 1, while GRADIENT of step 2"),
    "twice when it is answered": (0, [{}, {}], "worker-1 sent GRADIENT of step 2, bucket 0"),
    "unknown": (1, [{"bucket": 9}], "worker-1 sent GRADIENT of step 2, bucket 9"),
    "old": (1, [{"step": 1}], "worker-1 sent GRADIENT of step 1, bucket 1"),
    "early": (1, [{"step": 3}], "worker-1 sent GRADIENT of step 3, bucket 1"),
    "another's": (0, [{"bucket": 1}], "gradient of worker-1, step 2: "),
    "rubbish": (1, [{"body": b"rubbish"}], "gradient of worker-1, step 2: a payload has at least"),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_workers_message_out_of_place_is_the_error(name: str) -> None:
    bucket, instead, why = GRADIENTS[name]
    stage = Stage(overlapped())
    stage.alter("worker-1", sent(Kind.GRADIENT, bucket, *instead))
    with pytest.raises(WireError, match=why):
        stage.play()


UPDATES = {
    "twice": (2, [{}, {}], "server sent UPDATE of step 2, bucket 2, while an update of step"),
    "unknown": (1, [{"bucket": 9}], "server sent UPDATE of step 2, bucket 9"),
    "old": (1, [{"step": 1}], "server sent UPDATE of step 1, bucket 1, while an update of step 2"),
    "early": (
        1,
        [{"step": 3}],
        "server sent UPDATE of step 3, bucket 1, while an update of step 2",
    ),
    "another's": (0, [{"bucket": 2}], "."),
    "rubbish": (1, [{"body": b"rubbish"}], "a payload has at least"),
}


@pytest.mark.parametrize("name", UPDATES)
def test_a_servers_message_out_of_place_is_the_error(name: str) -> None:
    bucket, instead, why = UPDATES[name]
    stage = Stage(overlapped())
    stage.alter("server", sent(Kind.UPDATE, bucket, *instead))
    with pytest.raises(WireError, match=why):
        stage.play()


@pytest.mark.parametrize("algorithm", [DENSE, TOPK], ids=lambda row: row.name)
def test_training_that_diverges_is_the_error(algorithm: Algorithm) -> None:
    stage = Stage(overlapped(algorithm), optimizer={"name": "sgd", "lr": 1e30})
    with pytest.raises(GradientError, match="gradient"):
        stage.play()
