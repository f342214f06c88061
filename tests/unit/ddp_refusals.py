"""What each rank meets in the tests of the hook where something is wrong. All return plain things that cross a pipe."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from ddp_models import made
from ddp_scenarios import CPU, Training
from torch.nn.parallel import DistributedDataParallel

from testbed.compress.base import AccumulatedGradient, Recipe, RecipeChoice, Sparse, selectors
from testbed.compress.selectors.topk import Dense
from testbed.errors import NarrowsError
from testbed.training.ddp.gather import GatherChannel, GatherKind
from testbed.training.ddp.hook import CompressionState


def refused(what: str) -> str:
    """The error that a wrong request meets."""
    module = made("wide", dtype=torch.float64 if what == "float64" else torch.float32)
    model = DistributedDataParallel(module)
    requests: dict[str, Callable[[], object]] = {
        "float64": lambda: CompressionState.of(model, "topk-0.1"),
        "unknown": lambda: CompressionState.of(model, "topk_0.1"),
        "density": lambda: CompressionState.of(model, "adatopk", density=0.1),
        "zero": lambda: CompressionState.of(model, "topk-0.1", density=0.0),
        "delay": lambda: CompressionState.of(model, "adatopk").observe(accuracy=0.5),
        "residual": lambda: CompressionState.of(model, "topk-0.1").load_state_dict(
            _state("topk-0.1", "9.weight")
        ),
        "shape": lambda: CompressionState.of(model, "topk-0.1").load_state_dict(
            _state("topk-0.1", "1.bias")
        ),
        "memory": lambda: CompressionState.of(model, "none").load_state_dict(
            _state("topk-0.1", "1.weight")
        ),
    }
    return _error_of(requests[what])


def not_a_number_on_cuda(name: str) -> str:
    """What all ranks meet when the first has a gradient that it cannot send."""
    training = Training("topk-0.1", device="cuda")
    if dist.get_rank() == 0:
        parameter = training.module.get_parameter(name)
        parameter.register_hook(lambda gradient: gradient * float("nan"))
    return _error_of(lambda: training.step(1))


def not_a_number(step: int, rank: int, name: str) -> tuple[str, float]:
    """A gradient that one rank cannot send; and that the group works on."""
    training = Training("topk-0.1", ddp={"bucket_cap_mb": 0.1})
    for earlier in range(1, step):
        training.step(earlier)
    if dist.get_rank() == rank:
        parameter = training.module.get_parameter(name)
        parameter.register_hook(lambda gradient: gradient * float("nan"))
    text = _error_of(lambda: training.step(step))
    return text, _sum_of_ranks()


class Falls(Dense):
    """A selector with a defect."""

    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        if dist.get_rank() == 1:
            raise RuntimeError("index 7 is out of bounds")
        return super().select(given, density, rng)


def defective() -> tuple[str, float]:
    """A selector that fails on one rank."""
    if "falls" not in selectors:
        selectors.add("falls", Falls)
    training = Training(Recipe(RecipeChoice("falls")))
    return _error_of(lambda: training.step(1)), _sum_of_ranks()


def apart(algorithms: list[str]) -> str:
    """The error of ranks that compress in different ways."""
    training = Training(algorithms[dist.get_rank()])
    return _error_of(lambda: training.step(1))


def channels_apart(step: int, mark: int, length: int) -> str:
    """What ranks meet that send different things, each its own step, bucket and length."""
    group, rank = dist.group.WORLD, dist.get_rank()
    assert group is not None
    ours = GatherChannel(group, CPU, mark=mark * rank, most=100)
    ours.send(GatherKind.PAYLOAD, step * rank, [b"x" * length])
    return _error_of(ours.receive)


def _state(algorithm: str, name: str) -> dict[str, Any]:
    """A checkpoint with a residual of ``name``, of a shape that is right for 1.weight alone."""
    training = Training(algorithm)
    training.step(1)
    state = training.hook.state_dict()
    return {**state, "memory": {name: state["memory"]["1.weight"]}}


def _error_of(work: Callable[[], object]) -> str:
    try:
        work()
    except (NarrowsError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _sum_of_ranks() -> float:
    """By an all-reduce of our own: nothing was left behind in the group."""
    total = torch.tensor(1.0 + dist.get_rank())
    dist.all_reduce(total)
    return float(total)
