"""Modelled links for tests, without a scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.network import VirtualNetwork
from testbed.fabric.sim.node import VirtualNode
from testbed.scenario.link_state import Impairments, LinkDirection, LinkState


@dataclass(frozen=True)
class LinkModel:
    """A node's access link: bit/s in both directions, one-way seconds in each of them."""

    up_bits: float
    down_bits: float
    latency_s: float = 0.0
    queue_bytes: int = 10**9

    def shapes(self, name: str) -> dict[LinkDirection, LinkState]:
        """Both directions of the link ``name``."""
        delay = Impairments(delay_ns=round(self.latency_s * 1e9))
        return {
            LinkDirection(name, "up"): LinkState(
                round(self.up_bits), self.queue_bytes, impairments=delay
            ),
            LinkDirection(name, "down"): LinkState(
                round(self.down_bits), self.queue_bytes, impairments=delay
            ),
        }


def network(
    clock: VirtualClock, links: Mapping[str, LinkModel] | Iterable[str], **settings: Any
) -> VirtualNetwork:
    """A network of the nodes ``links`` (names alone: 1 Mbit/s each)."""
    given = links if isinstance(links, Mapping) else dict.fromkeys(links, LinkModel(1e6, 1e6))
    shapes: dict[LinkDirection, LinkState] = {}
    for name, link in given.items():
        shapes |= link.shapes(name)
    return VirtualNetwork(clock, shapes, **settings)


def lone_node(clock: VirtualClock, name: str = "worker-0") -> VirtualNode:
    """A node without peers."""
    return VirtualNode(VirtualEndpoint(network(clock, [name]), 1, name), seed=1)
