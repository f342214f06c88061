"""Who takes part in a step where not all do: a pure function of seed and step, which workers and servers know alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random

from testbed.train.job import Job
from testbed.train.seeding import derive


def takes_part(job: Job, step: int) -> bool:
    """Whether the worker of ``job`` does, in ``step`` (counted from 1)."""
    drawn = _of(job, step)
    return drawn is None or job.rank in drawn


def drawn_peers(job: Job) -> Callable[[int], Sequence[int]] | None:
    """By step, the numbers of those who do, by rank; None: all always do."""
    if job.train.participation is None:
        return None
    return lambda step: [job.servers + rank for rank in _of(job, step) or ()]


def resting(job: Job, step: int) -> list[int]:
    """The numbers of the workers who do not, by rank."""
    drawn = _of(job, step)
    if drawn is None:
        return []
    there = set(drawn)
    return [job.servers + rank for rank in range(job.workers) if rank not in there]


def away_until(job: Job, now_s: float) -> float | None:
    """When the worker of ``job`` returns, if it is to be away at ``now_s``; wall seconds after t0."""
    ends = (to_s for from_s, to_s in job.absences if from_s <= now_s < to_s)
    return next(ends, None)


@lru_cache(maxsize=64)
def participants(seed: int, step: int, workers: int, many: int) -> tuple[int, ...]:
    """``many`` ranks of ``workers``, in order: each set of so many is as likely as any other."""
    drawn = Random(derive(seed, "participation", step)).sample(range(workers), many)
    return tuple(sorted(drawn))


def _of(job: Job, step: int) -> tuple[int, ...] | None:
    asked = job.train.participation
    if asked is None:
        return None
    return participants(job.seed, step, job.workers, asked.many(job.workers))
