"""Layers travel while a CUDA device computes others: what is learned is what it is without."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from overlap_rig import DENSE, TOPK, Stage, overlapped

from testbed.algorithm import Algorithm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"),
]


def learned(algorithm: Algorithm) -> str:
    stage = Stage(algorithm, devices={"worker-0": "cuda", "worker-1": "cuda"})
    (found,) = {summary["parameters"] for summary in stage.play().summaries.values()}
    return str(found)


@pytest.mark.parametrize("algorithm", [DENSE, TOPK], ids=lambda row: row.name)
@pytest.mark.parametrize("order", ["forward", "backward"])
def test_overlap_changes_no_bit(algorithm: Algorithm, order: str) -> None:
    assert learned(overlapped(algorithm, order=order)) == learned(algorithm)
