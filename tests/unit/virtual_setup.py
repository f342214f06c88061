"""Real workers and a server on a virtual clock, as several tests need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from virtual_links import LinkModel, network

from testbed.algorithm import Algorithm
from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.node import VirtualNode, play
from testbed.scenario.model import Optimizer, Stop, Train
from testbed.training.job import Job
from testbed.training.server import Server
from testbed.training.worker import Worker
from testbed.units import Duration

ALGORITHMS = {
    "none": Algorithm("none"),
    "topk": Algorithm("topk", "topk", "feedback", options={"density": 0.05}),
    "adatopk": Algorithm("adatopk", "topk", "feedback", "adatopk"),
}
PACE_S = 0.2
LINK = LinkModel(up_bits=20e6, down_bits=50e6, latency_s=0.0002)


def train(**changes: Any) -> Train:
    """A small job that is done in well under a second."""
    settings: dict[str, Any] = {
        "task": "digits",
        "model": "mlp",
        "batch": 32,
        "optimizer": Optimizer(lr=0.1, momentum=0.9),
        "pace": Duration(PACE_S),
        "stop": Stop(steps=30),
        "evaluate_every": 10,
    }
    return Train(**{**settings, **changes})


def job(peer: int, workers: int, algorithm: str, seed: int = 1, **changes: Any) -> Job:
    """The job of the server (``peer`` 0) or of a worker."""
    node = f"worker-{peer - 1}" if peer else "server"
    return Job(
        run=7,
        algorithm=ALGORITHMS[algorithm],
        train=train(**changes),
        seed=seed,
        workers=workers,
        node=node,
        rank=max(0, peer - 1),
        peer=peer,
        peer_timeout_s=10.0,
    )


@dataclass
class Played:
    """Summaries and records by node."""

    summaries: Mapping[str, dict[str, Any]]
    records: Mapping[str, list[dict[str, Any]]]

    def of(self, node: str, kind: str) -> list[dict[str, Any]]:
        """One node's records of one kind."""
        return [record for record in self.records[node] if record["kind"] == kind]


class Stage:
    """A server and ``workers`` workers, ready to play; tests may exchange an endpoint's methods before."""

    def __init__(
        self, workers: int, algorithm: str, link: LinkModel = LINK, **changes: Any
    ) -> None:
        self.clock = VirtualClock()
        names = [job(peer, workers, algorithm).node for peer in range(workers + 1)]
        self.network = network(self.clock, dict.fromkeys(names, link))
        self.nodes: dict[str, VirtualNode] = {}
        self.roles: dict[str, Worker | Server] = {}
        for peer in range(workers + 1):
            given = job(peer, workers, algorithm, **changes)
            endpoint = VirtualEndpoint(self.network, peer, given.node)
            node = self.nodes[given.node] = VirtualNode(endpoint, given.seed)
            self.roles[given.node] = Worker(node, given) if peer else Server(node, given)

    def endpoint(self, node: str) -> VirtualEndpoint:
        """A node's endpoint."""
        return self.nodes[node].endpoint

    def play(self) -> Played:
        """Run to the end."""
        summaries = play(self.network, self.roles)
        return Played(summaries, {name: node.records for name, node in self.nodes.items()})
