"""Gradients of blocks: whoever computes one gets the same bits, and together they are the mini-batch's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import torch
from virtual_setup import job

from testbed.errors import GradientError
from testbed.exchange.coded.exchange import CodedExchange
from testbed.exchange.coded.round import LIMIT, MOST
from testbed.training.compute import PrivateReplicaProvider
from testbed.training.gradient_codec import BlockCodec, BlockComputation
from testbed.training.job import Job
from testbed.training.shared_replica import AnyReplica, ReplicaProvider, SharedReplicaProvider

torch.set_num_threads(1)


class Asks:
    """An exchange that asks for ``places``, and for nothing else."""

    def __init__(self, places: Sequence[slice]) -> None:
        self.places, self.saturated = places, -1

    def samples(self, count: int) -> list[slice]:
        assert count == 4 * 32
        return list(self.places)

    over = 4.0

    def report(self, saturated: int) -> None:
        self.saturated = saturated


def worker(
    rank: int, places: Sequence[slice], provider: ReplicaProvider | None = None
) -> tuple[Job, AnyReplica, BlockComputation, BlockCodec, Asks]:
    given, asks = job(rank + 1, 4, "none"), Asks(places)
    replica, computation = (provider or PrivateReplicaProvider()).provide(given)
    side = cast(CodedExchange, asks)
    of_blocks = BlockComputation(given, computation, replica.flat.size, side)
    return given, replica, of_blocks, BlockCodec(replica, of_blocks, side), asks


def test_blocks_are_the_same_bits_on_every_worker() -> None:
    _, _, one, _, _ = worker(0, [slice(0, 43), slice(43, 85)])
    _, _, other, _, _ = worker(3, [slice(43, 85), slice(85, 128), slice(0, 43)])
    one.gradients(2), other.gradients(2)
    np.testing.assert_array_equal(one.rows[1].view(np.int32), other.rows[0].view(np.int32))
    np.testing.assert_array_equal(one.rows[0].view(np.int32), other.rows[2].view(np.int32))


def test_blocks_add_up_to_the_gradient_of_the_mini_batch() -> None:
    workers = [PrivateReplicaProvider().provide(job(rank + 1, 4, "none")) for rank in range(4)]
    mean = np.zeros(workers[0][0].flat.size)
    for replica, computation in workers:
        computation.gradients(3)
        mean += replica.flat.gradients.numpy() / 4
    _, _, of_blocks, _, _ = worker(0, [slice(0, 43), slice(43, 85), slice(85, 128)])
    computed = of_blocks.gradients(3)
    np.testing.assert_allclose(of_blocks.rows.sum(0) / 128, mean, atol=1e-6)
    assert computed.share == 4
    assert 0 <= computed.accuracy <= 1
    assert computed.loss == pytest.approx(np.log(10), abs=0.5)


def test_workers_that_share_a_model_compute_blocks_too() -> None:
    places = [slice(5, 60)]
    _, _, own, _, _ = worker(1, places)
    _, _, shared, _, _ = worker(1, places, SharedReplicaProvider())
    own.gradients(1), shared.gradients(1)
    np.testing.assert_array_equal(own.rows, shared.rows)


def test_what_is_sent_is_fixed_point_in_the_order_of_blocks() -> None:
    _, _, of_blocks, codec, asks = worker(0, [slice(0, 64), slice(64, 128)])
    of_blocks.gradients(1)
    of_blocks.rows[1, 7] = 4 * LIMIT + 1
    divided = of_blocks.rows.astype(np.float64) / asks.over
    beyond = int((np.abs(divided) > LIMIT).sum())
    expected = np.clip(divided, -LIMIT, LIMIT) * MOST / LIMIT
    ((bucket, payload),) = codec.encode()
    fixed = np.frombuffer(payload, np.int32).reshape(2, -1)
    assert bucket == 0
    assert asks.saturated == beyond >= 1
    np.testing.assert_allclose(fixed, expected, atol=0.5 + 1e-6)
    summary = codec.summary()
    assert (summary.density, summary.sent.count) == (1.0, fixed.shape[1])


def test_a_gradient_that_is_no_number_names_its_parameter() -> None:
    _, replica, of_blocks, codec, _ = worker(0, [slice(0, 64)])
    of_blocks.gradients(1)
    part = list(replica.flat.layout)[1]
    of_blocks.rows[0, part.offset + 2] = np.inf
    with pytest.raises(GradientError, match=rf"'{part.name}' is not finite at element 2 \(1 such"):
        codec.encode()
