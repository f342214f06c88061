"""The nodes of a trial in virtual time that take part, and what they record. It is written once in a while, and by ``flush``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from testbed.fabric.base import NodeSpec
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.network import VirtualNetwork
from testbed.record.directory import RunDirectory
from testbed.session.progress import Progress
from testbed.train.roles import Role

_RECORDED = 1_000
"""Of more workers only so many, evenly spread over the ranks, have their steps recorded."""
_WRITE_EVERY_S, _WRITE_SHARE = 1.0, 10.0
"""Records are written so often, and at most in one tenth of the time."""

MULTICAST = "multicast"
"""Among the peers of a node's counters: all groups together."""


class Ensemble:
    """Nodes of ``specs`` but for hosts, on ``network``."""

    measured = False
    """Whether computation takes as long as it takes here."""
    spares = 0
    """How many workers the run can do without."""

    def __init__(
        self,
        specs: list[NodeSpec],
        network: VirtualNetwork,
        directory: RunDirectory,
        progress: Progress,
    ) -> None:
        self.specs = [spec for spec in specs if spec.role != "host"]
        workers = [spec for spec in self.specs if spec.role == "worker"]
        self.recorded_every = -(-len(workers) // _RECORDED)
        """The records of every so-many-th worker's steps are kept."""
        self.recorded = [w.name for w in workers if w.rank % self.recorded_every == 0]
        self.steps: dict[str, int] = {}
        """The last step that each node has finished."""
        self._names = {spec.peer: spec.name for spec in self.specs}
        self._network, self._directory, self._progress = network, directory, progress
        self._endpoints: dict[str, VirtualEndpoint] = {}
        self._records: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._write_at_s = time.monotonic() + _WRITE_EVERY_S

    def roles(self) -> Mapping[str, Role]:
        """All of them by name, not prepared."""
        raise NotImplementedError

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
