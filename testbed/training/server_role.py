"""Bases of the servers' roles, a server without anything to do, and what a server records of lost
workers and dropped gradients. Nothing here needs PyTorch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from testbed.exchange.base import ServerSide
from testbed.exchange.parameter_server import WorkerSetServer
from testbed.node import Node
from testbed.records.events import DroppedRecord, LostRecord
from testbed.training.job import Job, message_fields
from testbed.training.membership import peers, server_class


class BaseServer(ABC):
    """One server in one run: ``prepare``, then ``run`` from t0 on."""

    kind: ClassVar[str]
    """Its role in its summary."""

    def __init__(self, node: Node, job: Job) -> None:
        self._node, self._job = node, job
        self._step, self._end_s, self._bytes_down = 0, 0.0, 0

    @abstractmethod
    def prepare(self) -> None:
        """Do what takes time before t0."""

    @abstractmethod
    def run(self) -> dict[str, Any]:
        """Play the role from t0 on; returns a summary."""

    def _outcome(self) -> dict[str, Any]:
        """Return what the summary says of the model."""
        return {"accuracy": None, "parameters": None}

    def _summary(self, bytes_sent: int, bytes_received: int) -> dict[str, Any]:
        return {
            "role": self.kind,
            "node": self._job.node,
            "steps": self._step,
            "end_s": self._end_s,
            **self._outcome(),
            "bytes_down": self._bytes_down,
            "bytes_sent": bytes_sent,
            "bytes_received": bytes_received,
        }


class ServerRole(BaseServer):
    """A server that workers send gradients to."""

    kind = "server"
    _exchange: ServerSide

    def prepare(self) -> None:
        """Do what takes time, and wait for every worker's greeting. Raises InputError or
        MachineError when the job cannot be done here, NodeLost for a missing worker."""
        self._exchange = server_class(self._job)(self._node, peers(self._job))
        self._load()
        self._exchange.await_workers()

    def run(self) -> dict[str, Any]:
        """Serve until the last step; returns a summary. Raises NodeLost naming worker and step,
        WireError for a message that is not a gradient."""
        self._node.sleep_until(0.0)
        try:
            while not self._serve():
                pass
        finally:
            self._stop()
        self._end()
        return self._summary(self._exchange.bytes_sent, self._exchange.bytes_received)

    def _load(self) -> None:
        """Load data, build the model, pay first-time costs."""

    @abstractmethod
    def _serve(self) -> bool:
        """Answer gradients of ``_step`` + 1; return whether they were the last."""

    def _stop(self) -> None:
        """There is nothing to serve any more, whatever the reason."""

    def _end(self) -> None:
        """The last step has been answered."""
        self._exchange.await_goodbyes(self._step)


class IdleServer(BaseServer):
    """Takes no part: nothing is sent to it."""

    kind = "bystander"

    def prepare(self) -> None:
        """Nothing takes time before t0."""

    def run(self) -> dict[str, Any]:
        """Nothing to do; returns a summary like a server's."""
        self._node.sleep_until(0.0)
        return self._summary(bytes_sent=0, bytes_received=0)


class FailureLog:
    """Records the failures of ``exchange``, where it has any; one in lockstep has none."""

    def __init__(self, node: Node, job: Job, exchange: ServerSide) -> None:
        self._node, self._job, self._exchange = node, job, exchange
        self._recorded = 0

    def record(self, step: int) -> None:
        """Record what is new; the run is at ``step``."""
        server = self._exchange
        if not isinstance(server, WorkerSetServer):
            return
        node, name = self._node, self._job.node
        for lost in server.lost[self._recorded :]:
            node.record(LostRecord(name, lost.node, step, node.now(), lost.reason).to_json())
        self._recorded = len(server.lost)
        for message in server.dropped:
            fields = message_fields(node, message)
            node.record(DroppedRecord(name, message.step, fields).to_json())
        server.dropped.clear()
