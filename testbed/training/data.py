"""Which samples a worker sees at a step: pure functions of seed, step, rank and labels; seeds of
streams that never coincide; samples on their device.

Hsu, Qi and Brown 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification": worker i's labels are drawn from q_i ~ Dir(α·p), p being the labels' shares
in the training set, and its samples of each label without replacement. All workers have equally
many, so that the mean of their gradients counts every sample alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import exp, log
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from testbed.errors import InputError
from testbed.training.job import Job
from testbed.training.tasks.base import Samples, Task, tasks

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from testbed.scenario.model import Train


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for ``purpose`` (``derive(1, "batches", epoch)``), the same everywhere."""
    text = "/".join(map(str, (seed, *purpose))).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1


def open_task(train: Train) -> Task:
    """The task that ``train`` names. Raises InputError for an unknown one, or fewer classes than
    asked for."""
    kind = tasks.get(train.task, where="train.task")
    task = kind(Path(train.data) if train.data else None)
    if train.classes is None:
        return task
    if train.classes > kind.classes:
        raise InputError(
            f"task {train.task!r} has {kind.classes} classes, not {train.classes}",
            where="train.classes",
        )
    return FirstClasses(task, train.classes)


class FirstClasses:
    """The samples of ``task`` whose labels are below ``classes``."""

    def __init__(self, task: Task, classes: int) -> None:
        self._task, self._classes = task, classes

    def train_set(self) -> Samples:
        """See ``Task``."""
        return self._chosen(self._task.train_set())

    def test_set(self) -> Samples:
        """See ``Task``."""
        return self._chosen(self._task.test_set())

    def _chosen(self, samples: Samples) -> Samples:
        x, y = samples
        return x[y < self._classes], y[y < self._classes]


def on_device(samples: Samples, device: torch.device, where: str) -> Samples:
    """``samples`` on ``device``. Raises InputError unless they are what a task promises."""
    import torch

    x, y = samples
    if x.dtype != torch.float32 or y.dtype != torch.int64 or x.dim() != 4 or y.dim() != 1:
        raise InputError(
            f"the task's samples are {x.dtype} {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}",
            where=where,
            hint="x is float32 (count, channels, height, width) and y int64 (count,)",
        )
    if len(x) != len(y) or not len(y):
        raise InputError(f"the task has {len(x)} images and {len(y)} labels", where=where)
    return x.to(device), y.to(device)


def subset(samples: Samples, most: int) -> Samples:
    """At most ``most`` of ``samples``, the same ones every time, whatever their order means."""
    x, y = samples
    if len(y) <= most:
        return samples
    chosen = _shuffled(len(y), derive(0, "subset"))[:most].to(y.device)
    return x[chosen], y[chosen]


class Batches:
    """Every epoch all nodes draw the same permutation of the training set; worker ``rank`` of
    ``workers`` takes its own ``batch`` of every ``workers · batch`` samples, so no two share a
    sample in an epoch.

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
        """Return whether ``step`` is the last of its epoch."""
        return step % self.steps_per_epoch == 0

    def indices(self, step: int, rank: int) -> Tensor:
        """Positions in the training set, int64 (batch,)."""
        position = (step - 1) % self.steps_per_epoch
        start = (position * self._workers + rank) * self.batch
        return self._permutation(self.epoch(step))[start : start + self.batch]

    def labels(self, rank: int) -> dict[int, int] | None:  # noqa: ARG002
        """How many samples of each label worker ``rank`` has; None: workers draw from all."""
        return None

    def whole(self, step: int) -> Tensor:
        """Return the positions of all workers' samples, by rank: int64 (workers · batch,)."""
        count = self._workers * self.batch
        start = (step - 1) % self.steps_per_epoch * count
        return self._permutation(self.epoch(step))[start : start + count]

    def _permutation(self, epoch: int) -> Tensor:
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, _shuffled(self._count, derive(self._seed, "batches", epoch))
        return self._drawn[1]


def _shuffled(count: int, seed: int) -> Tensor:
    import torch

    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


class SplitBatches(Batches):
    """Every epoch each worker draws a permutation of its own samples."""

    def __init__(
        self, labels: Sequence[int], batch: int, workers: int, alpha: float, seed: int
    ) -> None:
        super().__init__(len(labels), batch, workers, seed)
        self._labels = labels
        self._shares = _split_once(tuple(labels), workers, alpha, seed)
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def indices(self, step: int, rank: int) -> Tensor:
        """See ``Batches``."""
        start = (step - 1) % self.steps_per_epoch * self.batch
        return self._order(self.epoch(step), rank)[start : start + self.batch]

    def labels(self, rank: int) -> dict[int, int]:
        """See ``Batches``; every label is there."""
        own = Counter(self._labels[sample] for sample in self._shares[rank])
        return {label: own[label] for label in sorted(set(self._labels))}

    def whole(self, step: int) -> Tensor:
        """See ``Batches``."""
        import torch

        return torch.cat([self.indices(step, rank) for rank in range(len(self._shares))])

    def _order(self, epoch: int, rank: int) -> Tensor:
        import torch

        if rank not in self._orders or self._orders[rank][0] != epoch:
            own = torch.tensor(self._shares[rank])
            order = _shuffled(len(own), derive(self._seed, "batches", epoch, rank))
            self._orders[rank] = epoch, own[order]
        return self._orders[rank][1]


def batches_of(job: Job, labels: Tensor) -> Batches:
    """The batches of ``job``'s workers; ``labels``: of the training set, int64 (count,). Raises
    InputError where a worker would not have a batch."""
    train, alpha = job.train, job.train.split.alpha
    alike = Batches(len(labels), train.batch, job.workers, job.seed)
    if alpha is None:
        return alike
    return SplitBatches(labels.tolist(), train.batch, job.workers, alpha, job.seed)


def split_by_label(labels: Sequence[int], workers: int, alpha: float, seed: int) -> list[list[int]]:
    """Positions of each worker's samples, len(labels) // workers each; none is there twice.

    Workers draw in turn, a sample each. Of a label that has run out nobody draws: its weight goes
    to the others, in proportion.
    """
    rng = Random(derive(seed, "split"))
    pools = _pools(labels, rng)
    sizes = [len(pool) for pool in pools]
    weights = [
        _dirichlet(rng, [alpha * size / len(labels) for size in sizes]) for _ in range(workers)
    ]
    shares: list[list[int]] = [[] for _ in range(workers)]
    chances = [_chances(own, pools) for own in weights]
    for _ in range(len(labels) // workers):
        for rank, share in enumerate(shares):
            pool = _drawn(rng, chances[rank], pools)
            share.append(pool.pop())
            if not pool:
                chances = [_chances(own, pools) for own in weights]
    return shares


@lru_cache(maxsize=1)
def _split_once(labels: tuple[int, ...], workers: int, alpha: float, seed: int) -> list[list[int]]:
    """Split as ``split_by_label`` does; workers of one process share the result."""
    return split_by_label(labels, workers, alpha, seed)


def _pools(labels: Sequence[int], rng: Random) -> list[list[int]]:
    """Positions by label, in an order of their own."""
    pools: dict[int, list[int]] = {label: [] for label in sorted(set(labels))}
    for sample, label in enumerate(labels):
        pools[label].append(sample)
    for pool in pools.values():
        rng.shuffle(pool)
    return list(pools.values())


def _dirichlet(rng: Random, concentrations: Sequence[float]) -> list[float]:
    """Shares that add up to 1. In logarithms: Gamma(a) = Gamma(a + 1) · U^(1/a) is below any float
    for a small a."""
    logs = [log(rng.gammavariate(a + 1, 1)) + log(1 - rng.random()) / a for a in concentrations]
    largest = max(logs)
    shares = [exp(value - largest) for value in logs]
    return [share / sum(shares) for share in shares]


class _Chances(NamedTuple):
    """Weights of the pools that are not empty, and their sum."""

    left: list[tuple[float, list[int]]]
    whole: float


def _chances(weights: Sequence[float], pools: Sequence[list[int]]) -> _Chances:
    """Return a worker's chances; they stay the same until another pool is empty."""
    left = [(weight, pool) for weight, pool in zip(weights, pools, strict=True) if pool]
    return _Chances(left, sum(weight for weight, _ in left))


def _drawn(rng: Random, chances: _Chances, pools: Sequence[list[int]]) -> list[int]:
    """A pool that is not empty. Who has no weight on any draws from all samples alike."""
    if not chances.whole:
        chances = _chances([float(len(pool)) for pool in pools], pools)
    reach = rng.random() * chances.whole
    for weight, pool in chances.left:
        reach -= weight
        if reach < 0:
            return pool
    return max(chances.left)[1]
