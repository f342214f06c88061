"""Who takes part in a step, and who a node exchanges gradients with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from random import Random

from testbed.algorithm import Algorithm
from testbed.compatibility import BUCKETS
from testbed.errors import InputError
from testbed.exchange.base import ExchangeSpec, Membership, ServerSide, WorkerSide, exchanges
from testbed.node import Node
from testbed.training.data import derive
from testbed.training.job import Job
from testbed.training.pacing import longest_s


def participates(job: Job, step: int) -> bool:
    """Return whether the worker of ``job`` takes part in ``step`` (counted from 1)."""
    drawn = _of(job, step)
    return drawn is None or job.rank in drawn


def participants_of(job: Job) -> Callable[[int], Sequence[int]] | None:
    """Return a function from step to the participants' numbers; None: all always take part."""
    if job.train.participation is None:
        return None
    return lambda step: [job.servers + rank for rank in _of(job, step) or ()]


def non_participants(job: Job, step: int) -> list[int]:
    """The numbers of the workers who do not, by rank."""
    drawn = _of(job, step)
    if drawn is None:
        return []
    return [job.servers + rank for rank in range(job.workers) if rank not in drawn]


def absent_until(job: Job, now_s: float) -> float | None:
    """When the worker of ``job`` returns, if it is to be away at ``now_s``; seconds after t0."""
    ends = (to_s for from_s, to_s in job.absences if from_s <= now_s < to_s)
    return next(ends, None)


@lru_cache(maxsize=64)
def participants(seed: int, step: int, workers: int, count: int) -> tuple[int, ...]:
    """``count`` ranks of ``workers``, in order: each set of so many is as likely as any other."""
    drawn = Random(derive(seed, "participation", step)).sample(range(workers), count)
    return tuple(sorted(drawn))


def _of(job: Job, step: int) -> tuple[int, ...] | None:
    participation = job.train.participation
    if participation is None:
        return None
    return participants(job.seed, step, job.workers, participation.many(job.workers))


def server_class(job: Job) -> Callable[[Node, Membership], ServerSide]:
    """The server's side of that exchange. Raises InputError where it has none."""
    kind = exchange_kind(job)
    if kind.server is None:
        raise InputError(f"the exchange {job.algorithm.exchange!r} has no server")
    if job.absences and kind.elastic is not None:
        return kind.elastic[1]
    return kind.server


def worker_class(job: Job) -> Callable[[Node, Membership], WorkerSide]:
    """A worker's side of that exchange."""
    kind = exchange_kind(job)
    return kind.elastic[0] if job.absences and kind.elastic is not None else kind.worker


def exchange_kind(job: Job) -> ExchangeSpec:
    """The exchange of ``job``'s algorithm. Raises InputError for an unknown or unsuitable one."""
    row = job.algorithm
    if row.buckets not in BUCKETS or (row.overlap and not row.bucket_bytes):
        raise InputError(
            f"algorithm {row.name!r} asks for buckets {row.buckets!r}, overlap {row.overlap}, "
            f"bucket_bytes {row.bucket_bytes}",
            hint="Buckets are 'whole' or 'layer', and what overlaps travels in buckets of "
            "`bucket_bytes`",
        )
    return exchanges.get(row.exchange, where=f"algorithm {row.name!r}")


def multicasts(algorithms: Iterable[Algorithm]) -> bool:
    """Return whether one's exchange multicasts. Raises InputError for an unknown exchange."""
    kinds = [exchanges.get(row.exchange, where=f"algorithm {row.name!r}") for row in algorithms]
    return any(kind.multicasts for kind in kinds)


def peers(job: Job, last_step: int | None = None) -> Membership:
    """All peers of ``job``. A worker is silent while it computes, so the longest pace adds to the
    timeout. ``last_step``: where it is known by numbers."""
    row = job.algorithm
    share = exchanges.get(row.exchange).work(row.exchange_options, job.workers)
    return Membership(
        own=job.peer,
        servers=job.server_peers(),
        workers=job.worker_peers(),
        names=_Names(job),
        timeout_s=job.peer_timeout_s + longest_s(job) * share,
        options=job.algorithm.exchange_options,
        last_step=last_step,
        drawn=participants_of(job),
        away_s=max((to_s - from_s for from_s, to_s in job.absences), default=0.0),
    )


class _Names(Mapping[int, str]):
    """Names by number: those of ten thousand peers are not copied for each of them."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < len(self):
            raise KeyError(number)
        return self._job.peer_name(number)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return self._job.servers + self._job.workers
