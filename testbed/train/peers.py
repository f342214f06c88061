"""Who a job's node exchanges gradients with, and how."""

from __future__ import annotations

from testbed.errors import InputError
from testbed.exchange import builtin as _builtin
from testbed.exchange.kinds import ExchangeKind, Peers, exchanges
from testbed.train.job import SERVER_PEER, Job

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
    numbers = (SERVER_PEER, *job.worker_peers())
    return Peers(
        own=job.peer,
        server=SERVER_PEER,
        workers=tuple(job.worker_peers()),
        names={number: job.peer_name(number) for number in numbers},
        timeout_s=job.peer_timeout_s + (job.train.pace or 0.0),
    )
