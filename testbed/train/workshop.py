"""What a worker works with: a replica and its computation, of its own or kept once for many workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from testbed.compress.compressor import Compressor
from testbed.compress.layout import Layout
from testbed.compress.shards import Shard
from testbed.node import Buffer
from testbed.train.batches import Batches
from testbed.train.compute import Computation, Computed, Floats
from testbed.train.job import Job
from testbed.train.rehearsal import rehearse
from testbed.train.replica import Replica


class Flat(Protocol):
    """A model as vectors; see ``testbed.train.flat.FlatModel``."""

    size: int
    layout: Layout
    gradients: Tensor


class WorkersReplica(Protocol):
    """A copy of the model, as a worker sees it; see ``testbed.train.replica.Replica``."""

    shards: list[Shard]
    """What travels by itself: all of it, or a part for each server."""

    @property
    def flat(self) -> Flat:
        """Its vectors."""
        ...

    @property
    def parameters(self) -> Tensor:
        """All of them, float32 (size,)."""
        ...

    def compressor(self, job: Job) -> Compressor:
        """A new one for this model."""
        ...

    def decode(self, shard: Shard, payload: Buffer) -> None:
        """Take in a shard's update."""
        ...

    def take(self, mean: Buffer) -> None:
        """Take in the whole mean gradient, float32 (size,) as bytes."""
        ...

    def adopt(self) -> None:
        """Take what was decoded for parameters."""
        ...

    def load(self, state: Buffer) -> None:
        """Be as the replica whose ``state`` it is."""
        ...

    def apply(self, epoch: int) -> None:
        """Make the step."""
        ...

    def apply_shard(self, shard: Shard, epoch: int) -> None:
        """Make the step for what was decoded of ``shard``; ``all_applied`` follows when it was made for all."""
        ...

    def all_applied(self, epoch: int) -> None:
        """The step is made when this returns."""
        ...

    def fingerprint(self) -> str:
        """Hash of the parameters."""
        ...


class WorkersComputation(Protocol):
    """Forward and backward pass; see ``testbed.train.compute.Computation``."""

    batches: Batches

    def gradients(self, step: int) -> Computed:
        """Set the replica's gradients to those of this worker's batch of ``step``."""
        ...

    def blocks(self, step: int, places: Sequence[slice], rows: Floats) -> Computed:
        """Set ``rows`` to sums of gradients over parts of all workers' batches of ``step``."""
        ...


class Workshop(Protocol):
    """Equips workers."""

    def equip(self, job: Job) -> tuple[WorkersReplica, WorkersComputation]:
        """What the worker of ``job`` works with; first-time costs are paid when this returns."""
        ...


class OwnWorkshop:
    """Everything of its own, as on a host of its own."""

    def equip(self, job: Job) -> tuple[Replica, Computation]:
        """One step's work is done on the side: memories, generators and parameters stay as they are."""
        replica = Replica(job)
        computation = Computation(job, replica.flat)
        gradients = replica.flat.gradients
        computation.gradients(step=1)
        rehearse(job, replica, gradients)
        gradients.zero_()
        return replica, computation
