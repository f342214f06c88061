"""Error feedback: buffers, names, checkpoints."""

from __future__ import annotations

from random import Random

import pytest
import torch

from testbed.compress.base import Sparse
from testbed.compress.compressor import Compressor
from testbed.compress.feedback import Feedback
from testbed.compress.forget import Forget
from testbed.errors import GradientError

torch.set_num_threads(1)


def test_two_steps_by_hand() -> None:
    memory = Feedback()
    first = memory.compensate("w", torch.tensor([3.0, -1.0, 2.0]))
    assert first.tolist() == [3.0, -1.0, 2.0]
    memory.update("w", first, Sparse(3, torch.tensor([0]), torch.tensor([3.0])))
    second = memory.compensate("w", torch.tensor([1.0, -1.0, 0.5]))
    assert second.tolist() == [1.0, -2.0, 2.5]
    memory.update("w", second, Sparse(3, torch.tensor([2]), torch.tensor([2.0])))
    assert memory.state()["w"].tolist() == [1.0, -2.0, 0.5]


def test_one_buffer_for_good() -> None:
    memory = Feedback()
    places = set()
    for _ in range(4):
        compensated = memory.compensate("w", torch.ones(8))
        places.add(compensated.data_ptr())
        memory.update("w", compensated, Sparse(8, torch.tensor([1]), compensated[[1]]))
    assert len(places) == 1


def test_residuals_are_kept_by_name() -> None:
    memory = Feedback()
    for name, value in (("a", 1.0), ("b", 10.0)):
        compensated = memory.compensate(name, torch.full((2,), value))
        memory.update(name, compensated, Sparse(2, torch.tensor([0]), compensated[[0]]))
    assert memory.compensate("a", torch.zeros(2)).tolist() == [0.0, 1.0]
    assert memory.compensate("b", torch.zeros(2)).tolist() == [0.0, 10.0]


def test_checkpoint_continues_identically() -> None:
    def gradient(step: int) -> torch.Tensor:
        return torch.randn(200, generator=torch.Generator().manual_seed(step))

    straight, before = Compressor.named("topk", "feedback"), Compressor.named("topk", "feedback")
    for step in range(3):
        straight.compress("w", gradient(step), 0.1, Random(0))
        before.compress("w", gradient(step), 0.1, Random(0))
    saved = before.memory.state()
    before.compress("w", gradient(9), 0.1, Random(0))  # must not reach what was saved
    after = Compressor.named("topk", "feedback")
    after.memory.load(saved)
    for step in range(3, 6):
        expected = straight.compress("w", gradient(step), 0.02, Random(0))[1]
        assert after.compress("w", gradient(step), 0.02, Random(0))[1] == expected


def test_everything_sent_leaves_nothing() -> None:
    compressor = Compressor.named("topk", "feedback")
    compressor.compress("w", torch.tensor([3.0, 1.0]), 0.5, Random(0))
    _, payload = compressor.compress("w", torch.tensor([0.0, 1.0]), 1.0, Random(0))
    out = torch.empty(2)
    compressor.decompress(payload, out)
    assert out.tolist() == [0.0, 2.0]
    assert compressor.memory.state()["w"].tolist() == [0.0, 0.0]


def test_a_bucket_that_changes_size() -> None:
    memory = Feedback()
    memory.compensate("w", torch.ones(3))
    with pytest.raises(GradientError, match="'w' had 3 elements and now has 4"):
        memory.compensate("w", torch.ones(4))


def test_forgetting_takes_no_residuals() -> None:
    memory = Forget()
    memory.load({})
    with pytest.raises(ValueError, match="residuals of w"):
        memory.load({"w": torch.ones(1)})
