"""The hook with gradients on a CUDA device: NCCL with one process, gloo with two on the same device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import ddp_refusals as refusals
import ddp_scenarios as scenarios
from ddp_rig import Ranks
from test_ddp_hook import assert_alike, assert_nothing_is_lost

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"),
]
GROUPS = {"nccl": 1, "gloo": 2, "cpu:gloo,cuda:nccl": 1}


@pytest.fixture(scope="module", params=GROUPS)
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranks]:
    group = Ranks(tmp_path_factory.mktemp("ranks"), GROUPS[request.param], backend=request.param)
    yield group
    group.close()


@pytest.mark.parametrize("algorithm", ["topk-0.02", "none", "adatopk"])
@pytest.mark.parametrize("view", [False, True])
def test_sent_and_kept_are_what_there_was(ranks: Ranks, algorithm: str, view: bool) -> None:
    ddp = {"bucket_cap_mb": 0.1, "gradient_as_bucket_view": view}
    outcomes = ranks.do(scenarios.train, algorithm, 6, 4, device="cuda", ddp=ddp)
    assert_nothing_is_lost(outcomes)
    assert_alike(outcomes)


def test_kernels_in_channels_last(ranks: Ranks) -> None:
    outcomes = ranks.do(scenarios.train, "topk-0.1", 5, 3, model="convolutional", device="cuda")
    assert_nothing_is_lost(outcomes)
    assert_alike(outcomes)


@pytest.mark.parametrize(("kind", "most"), [("float32", 1e-6), ("bfloat16", 2e-3)])
def test_dense_is_what_plain_ddp_does(ranks: Ranks, kind: str, most: float) -> None:
    for differences in ranks.do(scenarios.beside_plain, getattr(torch, kind), "cuda"):
        assert max(differences) <= most


def test_a_gradient_that_is_not_finite_is_an_error_on_all_ranks(ranks: Ranks) -> None:
    for text in ranks.do(refusals.not_a_number_on_cuda, "3.weight"):
        assert text.startswith("GradientError: rank 0: the gradient of '3.weight' holds nan")
