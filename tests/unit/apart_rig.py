"""A server and workers of different pace on links that take no time worth speaking of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from virtual_links import LinkModel, network
from virtual_setup import Played, job

from testbed.compatibility import resolve
from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.node import VirtualNode, play
from testbed.training.roles import Role, role
from testbed.units import Duration

FAST = LinkModel(1e13, 1e13)


class Apart:
    """``paces_s``: of worker-0, worker-1…"""

    def __init__(self, algorithm: str, paces_s: Sequence[float], **changes: Any) -> None:
        self.clock, count = VirtualClock(), len(paces_s)
        names = [job(peer, count, "none").node for peer in range(count + 1)]
        self.network = network(self.clock, dict.fromkeys(names, FAST))
        self.nodes: dict[str, VirtualNode] = {}
        self.roles: dict[str, Role] = {}
        for peer, pace_s in enumerate([1.0, *paces_s]):
            given = job(peer, count, "none", **{**changes, "pace": Duration(pace_s)})
            given = replace(given, algorithm=resolve(algorithm))
            endpoint = VirtualEndpoint(self.network, peer, given.node)
            node = self.nodes[given.node] = VirtualNode(endpoint, given.seed)
            self.roles[given.node] = role(node, given, "worker" if peer else "server")

    def play(self) -> Played:
        """Run to the end."""
        summaries = play(self.network, self.roles)
        return Played(summaries, {name: node.records for name, node in self.nodes.items()})
