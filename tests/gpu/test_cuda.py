"""The same roles with their computation on a CUDA device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from virtual_setup import ALGORITHMS, Stage

from testbed.scenario.model import Optimizer
from testbed.training.models.base import build
from testbed.training.replica import DeviceStaging, FlatModel, Sgd, configure_torch, parameter_hash

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("server_device", ["cpu", "cuda"])
def test_workers_on_cuda_train_and_agree_with_the_server(
    algorithm: str, server_device: str
) -> None:
    stage = Stage(2, algorithm, model="cnn")
    for name, role in stage.roles.items():
        object.__setattr__(role._job, "device", server_device if name == "server" else "cuda")
    played = stage.play()
    assert len({summary["parameters"] for summary in played.summaries.values()}) == 1
    losses = [record["loss"] for record in played.of("worker-0", "step")]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


def test_two_runs_on_cuda_are_identical() -> None:
    runs = []
    for _ in range(2):
        stage = Stage(1, "topk", model="cnn")
        object.__setattr__(stage.roles["worker-0"]._job, "device", "cuda")
        runs.append(stage.play().of("worker-0", "step"))
    assert [r["payload_crc"] for r in runs[0]] == [r["payload_crc"] for r in runs[1]]


@pytest.mark.parametrize("model", ["mlp", "cnn", "vgg19", "resnet18", "resnet50"])
def test_every_model_computes_deterministically(model: str) -> None:
    device = configure_torch("cuda", threads=1)
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1)).to(device)
    y = torch.arange(8, device=device)
    hashes = set()
    for _ in range(2):
        flat = FlatModel(build(model, "cifar10", 0.25, seed=1), device)
        torch.nn.functional.cross_entropy(flat.forward(x), y).backward()
        hashes.add(parameter_hash(flat.gradients))
    assert len(hashes) == 1


def test_the_optimizer_rounds_alike_on_both_processors() -> None:
    settings = Optimizer(lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    start = torch.randn(100_003, generator=torch.Generator().manual_seed(1))
    here, there = start.clone(), start.cuda()
    optimizers = [Sgd(settings, here), Sgd(settings, there)]
    for step in range(5):
        gradient = torch.randn(len(start), generator=torch.Generator().manual_seed(step))
        optimizers[0].apply(gradient.clone(), epoch=1)
        optimizers[1].apply(gradient.cuda(), epoch=1)
    assert parameter_hash(here) == parameter_hash(there)


def test_what_lands_goes_through_page_locked_memory() -> None:
    landing = DeviceStaging(1000, torch.device("cuda"))
    assert landing.room().is_pinned()
    landing.room().copy_(torch.arange(1000.0))
    delivered = landing.deliver()
    assert delivered.device.type == "cuda"
    assert torch.equal(delivered.cpu(), torch.arange(1000.0))
