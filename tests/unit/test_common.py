"""Workers that share a model: the gradients of separate ones, one update for all, and nothing else in common."""

from __future__ import annotations

import pytest
import torch
from virtual_setup import job

from testbed.errors import ExperimentError
from testbed.training import shared_replica
from testbed.training.compute import PrivateReplicaProvider
from testbed.training.shared_replica import SharedReplicaProvider

WORKERS = 5


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("together", [1 << 24, 1])
def test_gradients_are_those_of_separate_models(
    model: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_replica, "_TOGETHER_ELEMENTS", together)
    shop = SharedReplicaProvider()
    for rank in range(WORKERS):
        given = job(rank + 1, WORKERS, "none", model=model, batch=8)
        replica, computation = PrivateReplicaProvider().provide(given)
        shared, together_ = shop.provide(given)
        for step in (1, 2):
            alone, found = computation.gradients(step), together_.gradients(step)
            assert found.loss == pytest.approx(alone.loss, rel=1e-5)
            assert found.accuracy == alone.accuracy
            torch.testing.assert_close(shared.flat.gradients, replica.flat.gradients)


def test_an_update_is_applied_once_for_all() -> None:
    shop = SharedReplicaProvider()
    given = [job(rank + 1, WORKERS, "none") for rank in range(WORKERS)]
    own, computation = PrivateReplicaProvider().provide(given[0])
    computation.gradients(1)
    payload = bytes(
        own.compressor(given[0]).compress("whole", own.flat.gradients, 1.0, None).payload
    )  # type: ignore[arg-type]
    replicas = [shop.provide(each)[0] for each in given]
    assert replicas[0].fingerprint() == own.fingerprint()
    for replica in [own, *replicas]:
        replica.decode(replica.shards[0], payload)
        replica.apply(1)
    assert {replica.fingerprint() for replica in replicas} == {own.fingerprint()}


def test_another_update_for_another_worker_is_refused() -> None:
    shop = SharedReplicaProvider()
    given = [job(rank + 1, 2, "none") for rank in range(2)]
    (one, computation), (two, _) = (shop.provide(each) for each in given)
    computation.gradients(1)
    payloads = [
        bytes(r.compressor(j).compress("whole", r.flat.gradients, 1.0, None).payload)  # type: ignore[arg-type]
        for r, j in zip((one, two), given, strict=True)
    ]
    one.decode(one.shards[0], payloads[0])
    one.apply(1)
    with pytest.raises(ExperimentError, match="not bulk-synchronous"):
        two.decode(two.shards[0], payloads[1])
