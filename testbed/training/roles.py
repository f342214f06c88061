"""Which class plays a role, by the job. Those without a model need no PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from testbed.node import Node
from testbed.training.job import Job
from testbed.training.membership import exchange_kind
from testbed.training.server_role import IdleServer

if TYPE_CHECKING:
    from testbed.training.shared_replica import ReplicaProvider


class Role(Protocol):
    """The interface of a worker or a server to its process."""

    def prepare(self) -> None:
        """Everything that may take time before t0."""
        ...

    def run(self) -> dict[str, Any]:
        """The run itself, from t0 on; returns its summary."""
        ...


def role(node: Node, job: Job, name: str, provider: ReplicaProvider | None = None) -> Role:
    """The role ``name``, server or worker, of ``job``. ``provider``: of workers' replicas."""
    if name == "server" and exchange_kind(job).server is None:
        return IdleServer(node, job)
    if job.sizes:
        from testbed.training.payload_only import PayloadServer, PayloadWorker

        return PayloadServer(node, job) if name == "server" else PayloadWorker(node, job)
    if name == "server":
        from testbed.training.server import AsyncServer, Server

        return AsyncServer(node, job) if exchange_kind(job).asynchronous else Server(node, job)
    from testbed.training.worker import Worker

    return Worker(node, job, provider)
