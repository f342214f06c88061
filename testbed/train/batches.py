"""Which samples a worker sees at a step: a pure function of seed, step and rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.errors import InputError
from testbed.train.seeding import derive

if TYPE_CHECKING:
    from torch import Tensor


class Batches:
    """Every epoch all nodes draw the same permutation of the training set; worker ``rank`` of ``workers``
    takes its own ``batch`` of every ``workers · batch`` samples, so no two share a sample in an epoch.

    Steps and epochs count from 1. The last, incomplete mini-batch of an epoch is left out.
    """

    def __init__(self, count: int, batch: int, workers: int, seed: int) -> None:
        self.steps_per_epoch = count // (batch * workers)
        if not self.steps_per_epoch:
            raise InputError(
                f"{workers} workers with batches of {batch} need {workers * batch} samples a step, "
                f"the training set has {count}",
                where="train.batch",
                hint=f"Use a batch of at most {count // workers}",
            )
        self.batch = batch
        """Samples of one worker."""
        self._count, self._workers, self._seed = count, workers, seed
        self._drawn: tuple[int, Tensor] | None = None

    def epoch(self, step: int) -> int:
        """The epoch that ``step`` belongs to."""
        return (step - 1) // self.steps_per_epoch + 1

    def ends_epoch(self, step: int) -> bool:
        """Whether ``step`` is the last of its epoch."""
        return step % self.steps_per_epoch == 0

    def indices(self, step: int, rank: int) -> Tensor:
        """Positions in the training set, int64 (batch,)."""
        position = (step - 1) % self.steps_per_epoch
        start = (position * self._workers + rank) * self.batch
        return self._permutation(self.epoch(step))[start : start + self.batch]

    def labels(self, rank: int) -> dict[int, int] | None:  # noqa: ARG002
        """How many samples of each label worker ``rank`` has of its own; None: all workers draw from all."""
        return None

    def whole(self, step: int) -> Tensor:
        """Of all workers, by rank: int64 (workers · batch,)."""
        many = self._workers * self.batch
        start = (step - 1) % self.steps_per_epoch * many
        return self._permutation(self.epoch(step))[start : start + many]

    def _permutation(self, epoch: int) -> Tensor:
        import torch

        if self._drawn is None or self._drawn[0] != epoch:
            generator = torch.Generator().manual_seed(derive(self._seed, "batches", epoch))
            self._drawn = epoch, torch.randperm(self._count, generator=generator)
        return self._drawn[1]
