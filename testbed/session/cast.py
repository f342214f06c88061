"""The nodes of a trial in virtual time that train: their roles, and what these record."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from testbed.algorithms import Algorithm
from testbed.errors import InputError
from testbed.exchange.kinds import exchanges
from testbed.fabric.base import NodeSpec
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.network import VirtualNetwork
from testbed.fabric.sim.node import VirtualNode
from testbed.record.directory import RunDirectory
from testbed.session.experiment import Experiment, Jobs
from testbed.session.message_sizes import unsent_bytes
from testbed.session.progress import Progress
from testbed.train.roles import Role, role

if TYPE_CHECKING:
    from testbed.train.workshop import Workshop

OWN_WORKERS = 32
"""So many workers have models of their own, and the very gradients of other fabrics; more share one model."""
_RECORDED = 1_000
"""Of more workers only so many, evenly spread over the ranks, have their steps recorded."""
_WRITE_EVERY_S, _WRITE_SHARE = 1.0, 10.0
"""Records are written so often, and at most in one tenth of the time."""
_RUN = 1
"""Marks the frames of a run on real fabrics; here no others can come between."""

MULTICAST = "multicast"
"""Among the peers of a node's counters: all groups together."""


class Cast:
    """Servers and workers on ``network``. Records are written once in a while, and by ``flush``."""

    def __init__(
        self,
        experiment: Experiment,
        algorithm: Algorithm,
        seed: int,
        network: VirtualNetwork,
        directory: RunDirectory,
        progress: Progress,
    ) -> None:
        self.specs = [spec for spec in experiment.specs if spec.role != "host"]
        self.measured = experiment.scenario.train.pace is None
        """Whether computation takes as long as it takes here."""
        workers = [spec for spec in self.specs if spec.role == "worker"]
        self.recorded_every = -(-len(workers) // _RECORDED)
        """The records of every so-many-th worker's steps are kept."""
        self.recorded = [w.name for w in workers if w.rank % self.recorded_every == 0]
        kind = exchanges.get(algorithm.exchange)
        self.spares = kind.spares(algorithm.exchange_options, len(workers))
        """How many workers the run can do without."""
        self.steps: dict[str, int] = {}
        """The last step that each node has finished."""
        self._names = {spec.peer: spec.name for spec in self.specs}
        self._exchange = algorithm.exchange
        self._train, self._seed = experiment.scenario.train, seed
        self._jobs = Jobs(experiment, algorithm, seed, _RUN)
        self._network, self._directory, self._progress = network, directory, progress
        self._endpoints: dict[str, VirtualEndpoint] = {}
        self._records: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._write_at_s = time.monotonic() + _WRITE_EVERY_S

    def roles(self) -> dict[str, Role]:
        """All of them by name, not prepared."""
        workshop = self._workshop()
        return {spec.name: self._role(spec, workshop) for spec in self.specs}

    def flush(self) -> None:
        """Write what has been recorded."""
        begun_s = time.monotonic()
        for place, events in self._records.items():
            self._directory.events(*place, events)
        self._records.clear()
        now_s = time.monotonic()
        self._write_at_s = now_s + max(_WRITE_EVERY_S, _WRITE_SHARE * (now_s - begun_s))

    def record(self, spec: NodeSpec, event: dict[str, Any]) -> None:
        """Something about a node that it did not record itself."""
        self._records.setdefault((spec.role, spec.rank), []).append(event)

    def counters(self, name: str) -> dict[str, dict[str, int]]:
        """What the network counted of a node's frames, by peer; what it multicast is nobody's alone."""
        endpoint = self._endpoints[name]
        peers = endpoint.sent.keys() | endpoint.received.keys()
        counted = {
            self._names[peer]: (endpoint.sent.get(peer, 0), endpoint.received.get(peer, 0))
            for peer in peers
        }
        if endpoint.multicast_sent:
            counted[MULTICAST] = (endpoint.multicast_sent, 0)
        return {
            peer: {"bytes_sent": sent, "bytes_retransmitted": 0, "bytes_received": received}
            for peer, (sent, received) in counted.items()
        }

    def _workshop(self) -> Workshop | None:
        if self._train.gradients != "real":
            return None
        if sum(spec.role == "worker" for spec in self.specs) <= OWN_WORKERS:
            from testbed.train.workshop import OwnWorkshop

            return OwnWorkshop()
        if not exchanges.get(self._exchange).lockstep:
            raise InputError(
                f"more than {OWN_WORKERS} simulated workers share one replica, and by {self._exchange!r} they would "
                "need one each",
                hint=f"Simulate at most {OWN_WORKERS} workers",
            )
        from testbed.train.common import CommonWorkshop

        return CommonWorkshop()

    def _role(self, spec: NodeSpec, workshop: Workshop | None) -> Role:
        job = self._jobs.of(spec)
        endpoint = VirtualEndpoint(self._network, spec.peer, spec.name, unsent_bytes(job))
        self._endpoints[spec.name] = endpoint
        recording = spec.role == "server" or spec.rank % self.recorded_every == 0
        node = VirtualNode(
            endpoint,
            self._seed,
            self._recorder(spec) if recording else _drop,
            measured=self.measured,
            recording=recording,
        )
        return role(node, job, spec.role, workshop)

    def _recorder(self, spec: NodeSpec) -> Callable[[dict[str, Any]], None]:
        key = spec.role, spec.rank

        def record(event: dict[str, Any]) -> None:
            self._records.setdefault(key, []).append(event)
            if "step" in event:
                self.steps[spec.name] = event["step"]
            self._progress.event(event)
            if time.monotonic() > self._write_at_s:
                self.flush()

        return record


def _drop(_: dict[str, Any]) -> None:
    """Not recorded."""
