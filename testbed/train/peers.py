"""Who a job's node exchanges gradients with, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from testbed.errors import InputError
from testbed.exchange import builtin as _builtin
from testbed.exchange.kinds import ExchangeKind, Peers, exchanges
from testbed.train.job import Job

del _builtin


def exchange_kind(job: Job) -> ExchangeKind:
    """The exchange of ``job``'s algorithm. Raises InputError for one that is not known."""
    row = job.algorithm
    if row.buckets not in ("whole", "layer") or row.overlap:
        raise InputError(
            f"algorithm {row.name!r} asks for buckets {row.buckets!r}, overlap {row.overlap}",
            hint="This exchange sends the whole gradient in one message after the backward pass: "
            "buckets 'whole' or 'layer', no overlap",
        )
    return exchanges.get(row.exchange, where=f"algorithm {row.name!r}")


def peers(job: Job) -> Peers:
    """All peers of ``job``. A worker is silent while it computes, so its pace adds to the timeout."""
    return Peers(
        own=job.peer,
        servers=job.server_peers(),
        workers=job.worker_peers(),
        names=_Names(job),
        timeout_s=job.peer_timeout_s + (job.train.pace or 0.0),
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
