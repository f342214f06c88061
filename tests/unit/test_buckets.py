"""Buckets: what is in them, in which order they are sent and answered, and that they are applied as the whole is."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty
from overlap_rig import BUCKETS, STEPS, Stage, overlapped

from testbed.algorithm import Algorithm
from testbed.compress.layout import Layout, in_buckets, pieces
from testbed.errors import InputError
from testbed.records.events import ServedRecord
from testbed.training.replica import Replica
from testbed.training.server import _merged
from testbed.transport.frame import HEADER_BYTES

torch.set_num_threads(1)
LAYERS = st.lists(
    st.lists(st.lists(st.integers(1, 9), max_size=2).map(tuple), min_size=1, max_size=3),
    min_size=1,
    max_size=8,
)
PLAIN = {"name": "sgd", "lr": 0.1}
OPTIMIZERS = [
    PLAIN,
    {**PLAIN, "momentum": 0.9},
    {**PLAIN, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
]


def layout_of(layers: list[list[tuple[int, ...]]]) -> Layout:
    return Layout.of(
        (f"layer{n}.p{i}", shape) for n, parts in enumerate(layers) for i, shape in enumerate(parts)
    )


@given(LAYERS, st.integers(1, 600))
def test_buckets_are_whole_layers_from_the_last_to_the_first(
    layers: list[list[tuple[int, ...]]], least: int
) -> None:
    layout = layout_of(layers)
    buckets = in_buckets(layout, least)
    assert [bucket.number for bucket in buckets] == list(range(len(buckets)))
    assert len({bucket.name for bucket in buckets}) == len(buckets)
    assert (buckets[0].end, buckets[-1].begin) == (layout.size, 0)
    assert all(one.begin == other.end for one, other in pairwise(buckets))
    edges = {layer.begin for layer in layout.layers()}
    assert {bucket.begin for bucket in buckets} <= edges
    # a bucket is full with its last layer, and not before; the last one has what is left
    for bucket in buckets:
        assert bucket is buckets[-1] or 4 * bucket.layout.size >= least
        first = bucket.layout.layers()[0]
        assert 4 * (bucket.layout.size - first.end) < least or len(bucket.layout.layers()) == 1
    parts = [(part.name, part.shape) for bucket in reversed(buckets) for part in bucket.layout]
    assert parts == [(part.name, part.shape) for part in layout]


def test_any_size_at_least_makes_one_bucket_of_each_layer_or_of_all() -> None:
    layout = layout_of([[(3, 4), (3,)], [(2,)], [(5, 3)]])
    assert [(b.begin, b.end) for b in in_buckets(layout, 1)] == [(17, 32), (15, 17), (0, 15)]
    assert [(b.begin, b.end) for b in in_buckets(layout, 61)] == [(15, 32), (0, 15)]
    assert [(b.begin, b.end) for b in in_buckets(layout, 1 << 20)] == [(0, 32)]


def test_every_server_has_a_bucket() -> None:
    assert len(pieces(layout_of([[(3, 4)], [(2,)]]), 2, 1)) == 2
    with pytest.raises(InputError, match=r"makes 1 buckets of 1 B or more, for 2 servers"):
        pieces(layout_of([[(3, 4)]]), 2, 1)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_buckets_are_applied_as_the_whole_is(
    optimizer: dict[str, object], order: tuple[int, ...]
) -> None:
    job = Stage(overlapped(), optimizer=optimizer).job(1)
    whole, parted = Replica(job), Replica(job)
    assert len(whole.shards) == BUCKETS
    generator = torch.Generator().manual_seed(1)
    for epoch in (1, 1, 2):
        mean = torch.randn(whole.flat.size, generator=generator)
        for replica in (whole, parted):
            replica.load_mean_gradient(mean.numpy().data.cast("B"))
        whole.apply(epoch)
        for number in order:
            parted.apply_shard(parted.shards[number], epoch)
        parted.all_applied(epoch)
        assert parted.fingerprint() == whole.fingerprint()
    assert whole.fingerprint() != Replica(job).fingerprint()


def test_a_bucket_changes_no_other_parameters() -> None:
    replica = Replica(Stage(overlapped()).job(1))
    before, shard = replica.parameters.clone(), replica.shards[1]
    replica.load_mean_gradient(torch.ones(replica.flat.size).numpy().data.cast("B"))
    replica.apply_shard(shard, 1)
    changed = (replica.parameters != before).nonzero().flatten()
    assert (int(changed[0]), int(changed[-1]) + 1) == (shard.begin, shard.end)
    assert len(changed) == shard.layout.size


URGENT = {"forward": [0, 2, 1], "backward": [0, 1, 2]}


@pytest.mark.parametrize("order", URGENT)
def test_of_buckets_that_wait_the_most_urgent_is_sent_first(order: str) -> None:
    """Bucket 0 is being sent while the others are packed, and being answered while the others are complete."""
    played = Stage(overlapped(order=order), send_s=0.4).play()
    buckets, served = played.of("worker-0", "bucket"), played.of("server", "served")
    for step in range(1, STEPS + 1):
        own = [one for one in buckets if one["step"] == step]
        assert [b["bucket"] for b in sorted(own, key=lambda b: b["start_s"])] == URGENT[order]
        packed = sorted(own, key=lambda b: b["packed_s"])
        assert [b["bucket"] for b in packed] == list(range(BUCKETS))
        starts = [b["start_s"] for b in sorted(own, key=lambda b: b["start_s"])]
        assert all(later - earlier > 0.4 - 1e-9 for earlier, later in pairwise(starts))
        answers = sorted((s for s in served if s["step"] == step), key=lambda s: s["send_start_s"])
        assert answers[0]["bucket"] == 0


@pytest.mark.parametrize(("order", "second"), [("forward", 2), ("backward", 1)])
def test_of_replies_that_wait_the_most_urgent_is_sent_first(order: str, second: int) -> None:
    """A server that takes so long for a reply has all buckets before it can send the second."""
    stage = Stage(overlapped(order=order))
    server = stage.nodes["server"].endpoint
    send = server.send

    def slowly(destinations, message):  # type: ignore[no-untyped-def]
        stage.clock.sleep_until(stage.clock.now + 3.0)
        return send(destinations, message)

    server.send = slowly  # type: ignore[method-assign]
    served = stage.play().of("server", "served")
    for step in range(1, STEPS + 1):
        answers = sorted((s for s in served if s["step"] == step), key=lambda s: s["send_start_s"])
        assert [one["bucket"] for one in answers] == [0, second, 3 - second]
        assert all(one["complete_s"] < answers[1]["send_start_s"] for one in answers)


def test_a_run_in_buckets_says_so_of_every_bucket() -> None:
    plain = Algorithm("bucketed", bucket_bytes=1)
    played = Stage(plain).play()
    buckets = played.of("worker-1", "bucket")
    assert [(b["step"], b["bucket"]) for b in buckets] == [
        (step, bucket) for step in range(1, STEPS + 1) for bucket in range(BUCKETS)
    ]
    for step in not_empty(played.of("worker-1", "step")):
        own = [b for b in buckets if b["step"] == step["step"]]
        # phases follow one another: all are packed before the first is sent
        assert max(b["packed_s"] for b in own) <= min(b["start_s"] for b in own)
        assert sum(b["bytes_up"] for b in own) == step["bytes_up"]
        assert sum(b["bytes_down"] for b in own) == step["bytes_down"]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_step_of_buckets_is_their_sum_from_the_first_to_the_latest(
    order: tuple[int, ...],
) -> None:
    """Buckets are sent by urgency, and come back in any order."""

    def message(sender: int, size: int, *times_s: float) -> dict[str, float]:
        names = ("sent_s", "first_s", "arrived_s", "last_s")
        return {"sender": sender, "bytes": size, **dict(zip(names, times_s, strict=True))}

    first = [message(1, 10, 1.0, 2.0, 9.0, 9.5), message(2, 20, 1.5, 2.5, 3.5, 4.0)]
    second = [message(2, 200, 1.2, 5.0, 8.0, 8.5), message(1, 100, 2.0, 3.0, 5.0, 5.5)]
    third = [message(1, 1000, 3.0, 4.0, 6.0, 12.0)]
    served = [
        ServedRecord("s", 7, 0, first, 9.5, 0.5, 10.0, 11.0, 1, 5),
        ServedRecord("s", 7, 1, second, 8.5, 0.25, 9.0, 14.0, 2, 6),
        ServedRecord("s", 7, 2, third, 6.5, 1.0, 12.5, 13.0, 4, 7),
    ]
    whole = _merged([served[at] for at in order], [5])
    assert whole.messages == [
        message(1, 1110, 1.0, 2.0, 9.0, 12.0),
        message(2, 220, 1.2, 2.5, 8.0, 8.5),
    ]
    assert (whole.step, whole.aggregate_s, whole.others) == (7, 1.75, [5])
    assert (whole.send_start_s, whole.send_end_s) == (9.0, 14.0)
    assert (whole.bytes_down, whole.union_count) == (7, 18)


def test_parameters_that_share_a_payload_have_its_bytes_by_the_elements_sent() -> None:
    sparse = Algorithm("sparse", "topk", "feedback", options={"density": 0.05}, bucket_bytes=1)
    for bucket in not_empty(Stage(sparse).play().of("worker-0", "bucket")):
        shares = list(bucket["parts"].values())
        assert len(shares) > 1 and bucket["sent_count"] < bucket["size"]
        each = (bucket["bytes_up"] - HEADER_BYTES) / bucket["sent_count"]
        for _, sent, length, _ in shares:
            assert length == pytest.approx(each * sent)
        assert sum(share[1] for share in shares) == bucket["sent_count"]


@pytest.mark.parametrize("overlap", [True, False])
def test_controllers_are_told_when_which_bucket_left(overlap: bool) -> None:
    given = Algorithm(
        "watched", "laplace", "feedback", "lags", buckets="layer", bucket_bytes=1, overlap=overlap
    )
    played = Stage(given).play()
    ways = {(b["step"], b["bucket"]): b for b in played.of("worker-0", "bucket")}
    for step in not_empty(played.of("worker-0", "step")):
        told = step["controller"]["buckets"]
        assert {part["bucket"] for part in told.values()} == set(range(BUCKETS))
        for name, part in told.items():
            way = ways[step["step"], part["bucket"]]
            assert name in way["parts"]
            assert part["start_s"] == pytest.approx(way["start_s"] - step["start_s"])
