"""Runs whose gradients travel in buckets, on a virtual clock, and what can befall their nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from virtual_links import LinkModel, network
from virtual_setup import Played, train

from testbed.algorithm import Algorithm
from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.network import Costs
from testbed.fabric.sim.node import VirtualNode, play
from testbed.node import Message
from testbed.training.job import Job
from testbed.training.roles import Role, role
from testbed.training.shared_replica import SharedReplicaProvider
from testbed.units import Duration

LINK = LinkModel(20e6, 20e6, 0.004)
BUCKETS = 3
"""Of the model, where every layer is one."""
PACE_S, STEPS, TIMEOUT_S = 0.3, 4, 5.0
DENSE = Algorithm("dense")
TOPK = Algorithm(
    "topk", "topk", "feedback", options={"density": 0.05}, buckets="layer", dense_below=100
)
QSGD = Algorithm("qsgd", values="qsgd")


def overlapped(
    given: Algorithm = DENSE, bucket_bytes: int = 1, order: str = "forward"
) -> Algorithm:
    """The same, beside the computation."""
    return replace(given, bucket_bytes=bucket_bytes, overlap=True, order=order)


Alter = Callable[[Message], list[Message]]
"""What is sent instead of a message."""


class Stage:
    """Nodes, ready to play. ``shared``: workers have one model together; ``send_s``: what it takes a host to send a message.
    ``devices``: of nodes that do not compute on the processor, by name."""

    def __init__(
        self, algorithm: Algorithm, workers: int = 2, servers: int = 1, *, shared: bool = False,
        send_s: float = 0.0, devices: Mapping[str, str] | None = None, **changes: Any,
    ) -> None:  # fmt: skip
        self._devices = devices or {}
        self._servers, self._workers = servers, workers
        self._train = train(
            model="dnn",
            stop={"steps": STEPS},
            profile="constant",
            evaluate_every=2,
            **{"pace": Duration(PACE_S), **changes},
        )
        self.clock = VirtualClock()
        self._algorithm = algorithm
        jobs = [self.job(peer) for peer in range(servers + workers)]
        self.network = network(
            self.clock, dict.fromkeys((job.node for job in jobs), LINK), costs=Costs(send_s=send_s)
        )
        self.nodes: dict[str, VirtualNode] = {}
        self.roles: dict[str, Role] = {}
        provider = SharedReplicaProvider() if shared else None
        for job in jobs:
            endpoint = VirtualEndpoint(self.network, job.peer, job.node)
            node = self.nodes[job.node] = VirtualNode(endpoint, job.seed)
            self.roles[job.node] = role(node, job, job.node.partition("-")[0], provider)

    def job(self, peer: int) -> Job:
        """What a peer has to do."""
        servers = (
            ["server"] if self._servers == 1 else [f"server-{n}" for n in range(self._servers)]
        )
        names = [*servers, *(f"worker-{n}" for n in range(self._workers))]
        return Job(
            run=7, algorithm=self._algorithm, train=self._train, seed=1, workers=self._workers, node=names[peer],
            rank=peer if peer < self._servers else peer - self._servers, peer=peer, peer_timeout_s=TIMEOUT_S,
            servers=self._servers, device=self._devices.get(names[peer], "cpu"),
        )  # fmt: skip

    def alter(self, node: str, alter: Alter) -> None:
        """Have ``node`` send something else."""
        endpoint = self.nodes[node].endpoint
        send = endpoint.send

        def instead(destinations: Any, message: Message) -> int:
            to = list(destinations)
            return sum(send(to, other) for other in alter(message))

        endpoint.send = instead  # type: ignore[method-assign,assignment]

    def kill(self, node: str, at_s: float) -> None:
        """End all that ``node`` does at ``at_s``; others hear of the end of its connections."""

        def strike() -> None:
            self.clock.kill(node)
            number = list(self.nodes).index(node)
            for other in self.nodes.values():
                if other.name != node:
                    other.endpoint.lose(number, node)

        self.clock.at(at_s, strike)

    def pause(self, node: str, at_s: float) -> None:
        """Nothing of ``node`` goes on from ``at_s`` on."""
        self.clock.at(at_s, lambda: self.clock.hold(node))

    def play(self) -> Played:
        """Run to the end."""
        summaries: Mapping[str, dict[str, Any]] = play(self.network, self.roles)
        return Played(summaries, {name: node.records for name, node in self.nodes.items()})


def parameters(algorithm: Algorithm, **about: Any) -> str:
    """What all nodes that have the model have made of it in the end."""
    summaries = Stage(algorithm, **about).play().summaries.values()
    (found,) = {summary["parameters"] for summary in summaries} - {None}
    return str(found)
