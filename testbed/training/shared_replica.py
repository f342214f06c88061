"""Many workers in one process: one model for all of them, and their gradients computed together.

In a bulk-synchronous run all workers' parameters are equal, and nobody has the update of a step
before everybody has sent the gradient that it was made from. So the parameters are kept once, an
update is applied by whoever gets it first, and the first to ask for its gradient has everybody's
computed: as one batch with a gradient per worker. Each worker keeps what is its own: its gradient,
its memory, its controller, its randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from testbed.compress.compressor import Compressor
from testbed.compress.layout import Layout, Shard
from testbed.errors import ExperimentError
from testbed.node import Buffer
from testbed.training.compute import (
    Computation,
    Computed,
    Floats,
    PrivateReplicaProvider,
    sum_blocks,
    warm_up,
)
from testbed.training.data import batches_of, on_device, open_task
from testbed.training.job import Job
from testbed.training.replica import Replica

_TOGETHER_ELEMENTS = 1 << 24
"""Gradient elements that are computed at a time: bounds the memory that this takes."""


@dataclass
class RowModel:
    """A worker's view: its row of all gradients, float32 (size,)."""

    size: int
    layout: Layout
    gradients: Tensor


class SharedReplicaProvider:
    """Equips all workers of one run."""

    def __init__(self) -> None:
        self._common: _Common | None = None

    def provide(self, job: Job) -> tuple[SharedReplica, SharedComputation]:
        """Return the worker's replica and computation; the first one pays the first-time costs."""
        if self._common is None:
            self._common = _Common(job)
        common = self._common
        gradients = common.gradients[job.rank]
        flat = RowModel(common.replica.flat.size, common.replica.flat.layout, gradients)
        return SharedReplica(common, flat), SharedComputation(common, job.rank)


class _Common:
    """The state that all workers have in common. ``version``: updates applied so far."""

    def __init__(self, job: Job) -> None:
        self.replica, self.version = Replica(job), 0
        self.decoded: dict[int, bytes] = {}
        """Updates that were taken in since the last was applied, by shard."""
        self.applied: dict[int, bytes] = {}
        """Those of which the last step was made."""
        flat = self.replica.flat
        self.gradients = torch.zeros(job.workers, flat.size, device=flat.parameters.device)
        samples = open_task(job.train).train_set()
        self.data = on_device(samples, flat.parameters.device, "train.task")
        self.batches = batches_of(job, samples[1])
        self._named = dict(flat.module.named_parameters())
        self._workers, self._step = job.workers, 0
        self._loss, self._accuracy = [0.0] * job.workers, [0.0] * job.workers
        self._fingerprint: tuple[int, str] | None = None
        self._compute(1, 0, 1)
        warm_up(job, self.replica, self.gradients[0])
        self.gradients.zero_()

    def computed(self, step: int, rank: int) -> Computed:
        """Worker ``rank``'s loss and accuracy of ``step``; its gradient is in its row."""
        if self._step != step:
            count = max(1, _TOGETHER_ELEMENTS // self.replica.flat.size)
            for first in range(0, self._workers, count):
                self._compute(step, first, min(self._workers, first + count))
            self._step = step
        return Computed(self._loss[rank], self._accuracy[rank])

    def fingerprint(self) -> str:
        """Hash of the parameters as they are."""
        if self._fingerprint is None or self._fingerprint[0] != self.version:
            self._fingerprint = self.version, self.replica.fingerprint()
        return self._fingerprint[1]

    def _compute(self, step: int, first: int, last: int) -> None:
        """Gradients of workers ``first`` up to ``last``, not included."""
        ranks = range(first, last)
        chosen = torch.stack([self.batches.indices(step, rank) for rank in ranks])
        x, y = (samples[chosen] for samples in self.data)
        each = vmap(grad_and_value(self._loss_of, has_aux=True), in_dims=(None, 0, 0))
        gradients, (loss, logits) = each({n: p.detach() for n, p in self._named.items()}, x, y)
        rows = self.gradients[first:last]
        for part, name in zip(self.replica.flat.layout, self._named, strict=True):
            rows[:, part.offset : part.offset + part.size] = gradients[name].flatten(1)
        correct = (logits.argmax(2) == y).sum(1)
        self._loss[first:last] = loss.tolist()
        self._accuracy[first:last] = [count / y.shape[1] for count in correct.tolist()]

    def _loss_of(
        self, parameters: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits: Tensor = functional_call(self.replica.flat.module, parameters, (x,))
        return cross_entropy(logits, y), logits


class SharedReplica:
    """One worker's side of the common replica. Methods are as those of ``replica.Replica``."""

    def __init__(self, common: _Common, flat: RowModel) -> None:
        self.flat, self._common, self._version = flat, common, 0
        self.shards = common.replica.shards

    @property
    def parameters(self) -> Tensor:
        """Everybody's."""
        return self._common.replica.parameters

    def compressor(self, job: Job) -> Compressor:
        """Return a compressor of the worker's own, its memory empty."""
        return self._common.replica.compressor(job)

    def decode(self, shard: Shard, payload: Buffer) -> None:
        """Whoever is first takes in the update for all; the others' must be the same."""
        self._once(shard.number, payload, lambda: self._common.replica.decode(shard, payload))

    def _once(self, number: int, payload: Buffer, take: Callable[[], None]) -> None:
        common = self._common
        if self._version == common.version and number not in common.decoded:
            take()
            common.decoded[number] = bytes(payload)
            return
        late = self._version + 1 == common.version
        theirs = common.applied if late else common.decoded
        if self._version + late != common.version or payload != theirs.get(number):
            raise ExperimentError(
                "workers that share a replica got different updates: their exchange is not "
                "bulk-synchronous"
            )

    def load_mean_gradient(self, mean: Buffer) -> None:
        """As ``decode``, of the whole gradient."""
        self._once(0, mean, lambda: self._common.replica.load_mean_gradient(mean))

    def load_parameters(self) -> None:
        """Refuse: parameters of one's own are none of everybody's."""
        raise ExperimentError("workers that share a replica were given parameters of their own")

    def load_state(self, state: Buffer) -> None:  # noqa: ARG002
        """Refuse likewise."""
        self.load_parameters()

    def apply(self, epoch: int) -> None:
        """Make the step, if nobody has."""
        if self._version == self._common.version:
            common = self._common
            common.replica.apply(epoch)
            common.version += 1
            common.applied, common.decoded = common.decoded, {}
        self._version += 1

    def apply_shard(self, shard: Shard, epoch: int) -> None:
        """Others may not have it yet: ``all_applied`` makes the whole step."""

    def all_applied(self, epoch: int) -> None:
        """As ``apply``."""
        self.apply(epoch)

    def fingerprint(self) -> str:
        """Hash of the common parameters."""
        return self._common.fingerprint()


class SharedComputation:
    """One worker's side of the common computation (``compute.Computation``)."""

    def __init__(self, common: _Common, rank: int) -> None:
        self._common, self._rank, self.batches = common, rank, common.batches

    def gradients(self, step: int) -> Computed:
        """Computed with everybody's when the first one asks."""
        return self._common.computed(step, self._rank)

    def blocks(self, step: int, samples: Sequence[slice], rows: Floats) -> Computed:
        """As ``Computation.blocks``, with the parameters that all have."""
        common = self._common
        return sum_blocks(common.replica.flat, common.data, self.batches, step, samples, rows)


AnyReplica = Replica | SharedReplica
AnyComputation = Computation | SharedComputation
ReplicaProvider = PrivateReplicaProvider | SharedReplicaProvider
