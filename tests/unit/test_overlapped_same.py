"""However buckets travel, what is learned is the same, bit for bit."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from overlap_rig import BUCKETS, DENSE, PACE_S, QSGD, STEPS, TOPK, Stage, overlapped, parameters

from testbed.algorithm import Algorithm
from testbed.compress.payload import decode
from testbed.node import Kind, Message

torch.set_num_threads(1)
RANDK = Algorithm("randk", "randk", "feedback", options={"density": 0.05})
plain = functools.cache(lambda: parameters(DENSE))


def bucketed(given: Algorithm, bucket_bytes: int = 1) -> Algorithm:
    """Without overlap."""
    return Algorithm(**{**given.to_json(), "bucket_bytes": bucket_bytes})


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("bucket_bytes", [1, 200_000, 1 << 30])
def test_dense_gradients_in_any_buckets_and_order(bucket_bytes: int, order: str) -> None:
    assert parameters(bucketed(DENSE, bucket_bytes)) == plain()
    assert parameters(overlapped(DENSE, bucket_bytes, order)) == plain()


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("shared", [False, True])
def test_any_number_of_servers_and_of_replicas(servers: int, shared: bool) -> None:
    found = parameters(overlapped(), servers=servers, shared=shared)
    if shared:
        # many workers' gradients are computed as one batch, which rounds in its own way
        assert found == parameters(DENSE, shared=True)
        assert found == parameters(bucketed(DENSE), servers=servers, shared=True)
    else:
        assert found == plain()
        assert found == parameters(bucketed(DENSE), servers=servers)


def test_selection_by_layer_does_not_depend_on_buckets() -> None:
    alone = parameters(TOPK)
    assert alone != plain()
    for bucket_bytes in (1, 200_000):
        assert parameters(bucketed(TOPK, bucket_bytes)) == alone
        assert parameters(overlapped(TOPK, bucket_bytes)) == alone
        assert parameters(overlapped(TOPK, bucket_bytes, "backward")) == alone


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("drawn", [QSGD, Algorithm("down", down="qsgd")], ids=["up", "down"])
def test_what_is_drawn_for_a_bucket_does_not_depend_on_when(drawn: Algorithm, servers: int) -> None:
    apart = parameters(bucketed(drawn), servers=servers)
    assert apart != plain()
    for order in ("forward", "backward"):
        for send_s in (0.0, 0.2):  # a bucket that waits to be sent may be overtaken
            found = parameters(overlapped(drawn, order=order), servers=servers, send_s=send_s)
            assert found == apart


def test_workers_draw_apart_for_the_same_bucket() -> None:
    """Else their rounding errors would not cancel, nor would they send different elements."""
    stage, sent = Stage(overlapped(RANDK)), dict[tuple[int, int], list[bytes]]()

    def keep(message: Message) -> list[Message]:
        if message.kind is Kind.GRADIENT:
            sent.setdefault((message.step, message.bucket), []).append(bytes(message.body))
        return [message]

    for worker in ("worker-0", "worker-1"):
        stage.alter(worker, keep)
    own = stage.play().of("worker-0", "bucket")
    sizes = {(bucket["step"], bucket["bucket"]): bucket["size"] for bucket in own}
    seeds = {at: {decode(body, sizes[at]).seed for body in sent[at]} for at in sent}
    assert len(seeds) == BUCKETS * STEPS
    assert all(len(drawn - {None}) == 2 for drawn in seeds.values())


def test_momentum_and_decay_by_bucket() -> None:
    optimizer = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
    one = parameters(DENSE, optimizer=optimizer)
    assert one != plain()
    assert parameters(overlapped(), optimizer=optimizer) == one


def test_a_step_begins_when_its_first_layer_has_its_parameters() -> None:
    played = Stage(overlapped()).play()
    steps, buckets = played.of("worker-0", "step"), played.of("worker-0", "bucket")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert len(buckets) == BUCKETS * STEPS
    for step, later in itertools.pairwise(steps):
        assert later["start_s"] == step["end_s"]
        own = {one["bucket"]: one for one in buckets if one["step"] == step["step"]}
        assert own[BUCKETS - 1]["applied_s"] == step["end_s"]
        for one in own.values():
            assert one["ready_s"] <= one["pack_s"] <= one["packed_s"] <= one["start_s"]
            assert one["start_s"] <= one["first_s"] <= one["arrived_s"] <= one["decoded_s"]
            assert one["decoded_s"] <= one["applying_s"] <= one["applied_s"]
        # the last layer's gradients leave before the first layer's are computed
        assert own[0]["start_s"] < own[BUCKETS - 1]["ready_s"] - PACE_S / 5
        assert sum(one["bytes_up"] for one in own.values()) == step["bytes_up"]


def test_the_server_answers_a_bucket_as_soon_as_it_has_it() -> None:
    played = Stage(overlapped()).play()
    served, rounds = played.of("server", "served"), played.of("server", "round")
    for round_ in rounds:
        own = [one for one in served if one["step"] == round_["step"]]
        assert {one["bucket"] for one in own} == set(range(BUCKETS))
        assert all(one["complete_s"] <= one["send_start_s"] <= one["send_end_s"] for one in own)
        assert sum(one["bytes_down"] for one in own) == round_["bytes_down"]
        first = min(own, key=lambda one: one["complete_s"])
        last = max(own, key=lambda one: one["complete_s"])
        assert first["bucket"] == 0
        assert first["send_start_s"] < last["complete_s"]
        sent = [
            sum(m["bytes"] for one in own for m in one["messages"] if m["sender"] == w)
            for w in (1, 2)
        ]
        assert sent == [message["bytes"] for message in round_["messages"]]
