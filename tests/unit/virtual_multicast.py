"""Nodes on modelled links that multicast to each other, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from virtual_links import LinkModel

from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint, packet_bytes
from testbed.fabric.sim.link_state import PACKET_BITS
from testbed.fabric.sim.network import VirtualNetwork
from testbed.node import Kind, Message
from testbed.scenario.link_state import LinkDirection, LinkState

RATE = 10e6
BODY = bytes(100_000)
BITS = 8.0 * packet_bytes(len(BODY) + 40)
"""Of ``BODY`` as a frame, on a link."""
PACKET_S = PACKET_BITS / RATE
"""What a link takes for a packet."""
LINK = LinkModel(RATE, RATE)


class Rig:
    """Nodes of ``LINK``s, unless ``links`` says otherwise, which multicast to ``groups``."""

    def __init__(
        self,
        count: int,
        groups: Sequence[set[int]] | None = None,
        links: Mapping[int, LinkModel] | None = None,
        others: Mapping[LinkDirection, LinkState] | None = None,
        **settings: Any,
    ) -> None:
        self.clock = VirtualClock()
        given = {f"n{number}": (links or {}).get(number, LINK) for number in range(count)}
        shapes: dict[LinkDirection, LinkState] = {}
        for name, link in given.items():
            shapes |= link.shapes(name)
        self.net = VirtualNetwork(self.clock, {**shapes, **(others or {})}, **settings)
        self.ends = [VirtualEndpoint(self.net, n, f"n{n}") for n in range(count)]
        self.groups = [frozenset(group) for group in groups or [set(range(count))]]
        for end in self.ends:
            end.form_groups(self.groups)

    def cast(self, sender: int, group: int = 0, step: int = 1, body: bytes = BODY) -> int:
        """``sender`` multicasts."""
        message = Message(Kind.GRADIENT, step, 0, sender, body)
        return self.ends[sender].multicast(group, message)

    def take(self, receiver: int, count: int = 1) -> list[Message]:
        """So many messages that come to ``receiver``."""
        return [self.ends[receiver].receive(1000.0) for _ in range(count)]

    def run(self, **activities: Callable[[], Any]) -> dict[str, Any]:
        """What each of ``activities`` returns; the run starts at once."""
        return self.clock.run({"start": self.net.start, **activities})

    def carried(self, link: str, direction: str) -> float:
        """Bits that a direction has carried."""
        self.net.flows.advance()
        return float(
            self.net.links.delivered_bits[self.net.links.number[LinkDirection(link, direction)]]
        )  # type: ignore[arg-type]
