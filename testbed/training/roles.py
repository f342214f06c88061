"""Which class plays a role, by the job, and a server without anything to do. Those without a model
need no PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from testbed.node import Node
from testbed.training.job import Job
from testbed.training.membership import exchange_kind

if TYPE_CHECKING:
    from testbed.training.compute import ReplicaProvider


class IdleServer:
    """Takes no part: it is there from t0 on, and nothing is sent to it."""

    def __init__(self, node: Node, job: Job) -> None:
        self._node, self._job = node, job

    def prepare(self) -> None:
        """Nothing takes time before t0."""

    def run(self) -> dict[str, Any]:
        """Nothing to do; returns a summary like a server's."""
        self._node.sleep_until(0.0)
        return {
            "role": "bystander",
            "node": self._job.node,
            "steps": 0,
            "end_s": 0.0,
            "accuracy": None,
            "parameters": None,
            "bytes_down": 0,
            "bytes_sent": 0,
            "bytes_received": 0,
        }


class Role(Protocol):
    """The interface of a worker or a server to its process."""

    def prepare(self) -> None:
        """Everything that may take time before t0."""
        ...

    def run(self) -> dict[str, Any]:
        """The run itself, from t0 on; returns its summary."""
        ...


def role(node: Node, job: Job, name: str, workshop: ReplicaProvider | None = None) -> Role:
    """The role ``name`` (server or worker) of ``job``. ``workshop``: what equips workers, if not
    their own."""
    if name == "server" and exchange_kind(job).server is None:
        return IdleServer(node, job)
    if job.sizes:
        from testbed.training.payload_only import PayloadServer, PayloadWorker

        return PayloadServer(node, job) if name == "server" else PayloadWorker(node, job)
    if name == "server" and exchange_kind(job).asynchronous:
        from testbed.training.server import AsyncServer

        return AsyncServer(node, job)
    if name == "server":
        from testbed.training.server import Server, ShardServer

        return Server(node, job) if job.servers == 1 else ShardServer(node, job)
    from testbed.training.worker import Worker

    return Worker(node, job, workshop)
