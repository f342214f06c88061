"""Which class plays a role, by the job. Each is imported when it is wanted: those without a model need no PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from testbed.node import Node
from testbed.train.bystander import Bystander
from testbed.train.job import Job
from testbed.train.peers import exchange_kind

if TYPE_CHECKING:
    from testbed.train.workshop import Workshop


class Role(Protocol):
    """What a worker or a server is to its process."""

    def prepare(self) -> None:
        """Everything that may take time before t0."""
        ...

    def run(self) -> dict[str, Any]:
        """The run itself, from t0 on; returns its summary."""
        ...


def role(node: Node, job: Job, name: str, workshop: Workshop | None = None) -> Role:
    """The role ``name`` (server or worker) of ``job``. ``workshop``: what equips workers, if not their own."""
    if name == "server" and exchange_kind(job).server is None:
        return Bystander(node, job)
    if job.sizes:
        from testbed.train.payload import PayloadServer, PayloadWorker

        return PayloadServer(node, job) if name == "server" else PayloadWorker(node, job)
    if name == "server" and exchange_kind(job).asynchronous:
        from testbed.train.async_server import AsyncServer

        return AsyncServer(node, job)
    if name == "server":
        from testbed.train.server import Server, ShardServer

        return Server(node, job) if job.servers == 1 else ShardServer(node, job)
    from testbed.train.worker import Worker

    return Worker(node, job, workshop)
