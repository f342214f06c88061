"""Who a job's node exchanges gradients with, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from testbed.algorithms import Algorithm
from testbed.algorithms.fit import BUCKETS
from testbed.errors import InputError
from testbed.exchange import builtin as _builtin
from testbed.exchange.kinds import ExchangeKind, Peers, ServerSide, WorkerSide, exchanges
from testbed.node import Node
from testbed.train.job import Job
from testbed.train.participation import drawn_peers
from testbed.train.step_times import longest_s

del _builtin

ServedKind = Callable[[Node, Peers], ServerSide]


def served(job: Job) -> ServedKind:
    """The server's side of that exchange. Raises InputError where it has none."""
    kind = exchange_kind(job)
    if kind.server is None:
        raise InputError(f"the exchange {job.algorithm.exchange!r} has no server")
    if job.absences and kind.leaving is not None:
        return kind.leaving[1]
    return kind.server


def worker_side(job: Job) -> Callable[[Node, Peers], WorkerSide]:
    """A worker's side of that exchange."""
    kind = exchange_kind(job)
    return kind.leaving[0] if job.absences and kind.leaving is not None else kind.worker


def exchange_kind(job: Job) -> ExchangeKind:
    """The exchange of ``job``'s algorithm. Raises InputError for one that is not known, or cannot carry it."""
    row = job.algorithm
    if row.buckets not in BUCKETS or (row.overlap and not row.bucket_bytes):
        raise InputError(
            f"algorithm {row.name!r} asks for buckets {row.buckets!r}, overlap {row.overlap}, "
            f"bucket_bytes {row.bucket_bytes}",
            hint="Buckets are 'whole' or 'layer', and what overlaps travels in buckets of `bucket_bytes`",
        )
    return exchanges.get(row.exchange, where=f"algorithm {row.name!r}")


def multicasts(algorithm: Algorithm) -> bool:
    """Whether one message of its exchange goes to several nodes. Raises InputError for an exchange that is not known."""
    return exchanges.get(algorithm.exchange, where=f"algorithm {algorithm.name!r}").multicasts


def peers(job: Job, last_step: int | None = None) -> Peers:
    """All peers of ``job``. A worker is silent while it computes, so the longest pace adds to the timeout.

    ``last_step``: where it is known by numbers.
    """
    row = job.algorithm
    share = exchanges.get(row.exchange).work(row.exchange_options, job.workers)
    return Peers(
        own=job.peer,
        servers=job.server_peers(),
        workers=job.worker_peers(),
        names=_Names(job),
        timeout_s=job.peer_timeout_s + longest_s(job) * share,
        options=job.algorithm.exchange_options,
        last_step=last_step,
        drawn=drawn_peers(job),
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
