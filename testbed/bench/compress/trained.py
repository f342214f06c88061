"""Real trainings in this process, for the gradients that they have to compress: one worker, no network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from testbed.algorithms import Algorithm
from testbed.compress.base import Compensated, Selector, Sparse
from testbed.scenario.model import Optimizer, Stop, Train

if TYPE_CHECKING:
    from torch import Tensor

    from testbed.train.job import Job


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained, by SGD with error feedback."""

    task: str
    model: str
    width: float
    batch: int = 32
    lr: float = 0.05

    @property
    def name(self) -> str:
        """Task, model and width."""
        return f"{self.task} {self.model} x{self.width:g}"

    def elements(self) -> int:
        """Parameters of the model."""
        from testbed.train.models import parameter_count

        return parameter_count(self.model, self.task, self.width)


@dataclass(frozen=True, slots=True)
class Step:
    """One step before it is made: p = g + e, and what was selected of it. Both hold until the next step."""

    number: int
    given: Compensated
    sent: Sparse


def steps(training: Training, selector: Selector, density: float, seed: int = 1) -> Iterator[Step]:
    """A training's steps without end, from 1 on; each is made when the next one is asked for."""
    import torch

    from testbed.compress.feedback import Feedback
    from testbed.train.compute import Computation
    from testbed.train.flat import FlatModel
    from testbed.train.models import build
    from testbed.train.optimizer import Sgd

    job = _job(training, seed)
    module = build(training.model, training.task, training.width, seed)
    flat = FlatModel(module, torch.device("cpu"))
    computation, optimizer = Computation(job, flat), Sgd(job.train.optimizer, flat.parameters)
    memory, rng, update = Feedback(flat.layout), Random(seed), torch.empty(flat.size)
    number = 0
    while True:
        number += 1
        computation.gradients(number)
        given = memory.compensate(flat.gradients)
        sent = selector.select(given, density, rng)
        yield Step(number, given, sent)
        _spread(sent, update)
        memory.update(given, sent)
        optimizer.apply(update, computation.batches.epoch(number))


def _spread(sent: Sparse, out: Tensor) -> None:
    if sent.indices is None:
        out.copy_(sent.values)
        return
    out.zero_()
    out[sent.indices] = sent.values


def _job(training: Training, seed: int) -> Job:
    from testbed.train.job import Job

    train = Train(
        task=training.task,
        model=training.model,
        width=training.width,
        batch=training.batch,
        optimizer=Optimizer(name="sgd", lr=training.lr),
        stop=Stop(steps=1),
    )
    return Job(
        run=0, algorithm=Algorithm("none"), train=train, seed=seed, workers=1, node="worker-0",
        rank=0, peer=1, peer_timeout_s=1.0,
    )  # fmt: skip
