"""Times by layer on a CUDA device: of its own queue, not of the host that fills it."""

from __future__ import annotations

from time import perf_counter

import pytest
import torch
from torch.nn.functional import cross_entropy

from testbed.runner.manifest_writer import measured_file
from testbed.scenario.model import Train
from testbed.training.models.base import build
from testbed.training.profiling import CudaStopwatch, TimedPasses
from testbed.training.replica import FlatModel, configure_torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"),
]


def test_every_layer_takes_time() -> None:
    found = measured_file(Train(model="resnet18", task="cifar10", batch=64), "cuda", 1, 5)
    assert all(one.forward_s > 0 and one.backward_s > 0 for one in found.layers)
    assert found.device == torch.cuda.get_device_name()


def test_layers_add_up_to_the_whole() -> None:
    device = configure_torch("cuda", 1)
    flat = FlatModel(build("vgg19", "cifar10", 1.0, seed=1), device)
    x, y = (
        torch.ones((128, 3, 32, 32), device=device),
        torch.ones(128, dtype=torch.int64, device=device),
    )

    def compute() -> None:
        cross_entropy(flat.forward(x), y).backward()
        torch.cuda.synchronize()

    passes = TimedPasses(flat, CudaStopwatch())
    for _ in range(3):
        passes.times(compute)
    begun_s = perf_counter()
    layers = passes.times(compute)
    took_s = perf_counter() - begun_s
    total_s = sum(one.forward_s + one.backward_s for one in layers)
    assert 0.2 * took_s < total_s <= took_s
