"""How large the messages of a job will be, as far as that is known before it begins."""

from __future__ import annotations

from testbed.exchange.frame import MAX_BODY
from testbed.train.job import Job
from testbed.train.peers import exchange_kind

_DENSE_BYTES = 4
_SPARSE_BYTES = 8
"""Of an element with its index."""
_MOST_PER_ELEMENT, _MOST_BESIDE = 64, 1 << 20
"""No payload takes more for an element of the model, and for what is not elements."""
_UNSENT = 32 << 10
"""Room for the time that a sender takes to go on: 0.26 ms at 1 Gbit/s."""


def expected_bytes(job: Job) -> float:
    """Bytes of the larger ones of a job's messages: exact where nothing is trained, else from its density.

    A controller may choose any density, so that of the dense gradient stands for what it does.
    """
    if job.sizes:
        return max(max(one.up, one.down) for step in job.sizes for one in step)
    return _parameters(job) * _per_element(job) / max(1, job.servers)


def most_bytes(job: Job) -> int:
    """What no message of a job can exceed, generously."""
    if job.sizes:
        return min(MAX_BODY, int(expected_bytes(job)) + _MOST_BESIDE)
    return min(MAX_BODY, _parameters(job) * _MOST_PER_ELEMENT + _MOST_BESIDE)


def unsent_bytes(job: Job) -> int | None:
    """How much of what has not left yet a job's nodes hand over; None: whatever their network stacks take.

    Where the most urgent bucket goes first: what has been handed over, no other can overtake.
    """
    row = job.algorithm
    return _UNSENT if row.overlap and row.order == "forward" else None


def _per_element(job: Job) -> float:
    """Of the mean of all workers' gradients, which is less sparse than any of them."""
    density = job.algorithm.options.get("density")
    compressed = exchange_kind(job).carries == "payload" and job.algorithm.controller == "fixed"
    if not compressed or not isinstance(density, int | float):
        return _DENSE_BYTES
    return min(_DENSE_BYTES, density * job.workers * _SPARSE_BYTES)


def _parameters(job: Job) -> int:
    from testbed.train.models import parameter_count

    return parameter_count(job.train.model, job.train.task, job.train.width)
