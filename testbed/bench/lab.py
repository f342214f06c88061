"""Nodes for benchmarks: namespaces on one switch, made and removed as runs make them, without processes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from testbed.bench.setup import Setup
from testbed.fabric.base import Networks, NodeSpec, Place, RunContext, new_id
from testbed.fabric.netns import NetnsFabric
from testbed.links.client import Agent
from testbed.links.routes import shape_route
from testbed.session.interrupt import shielded
from testbed.session.lock import machine

OURS, PLAIN = "ours", "plain"
"""The node whose link the agent shapes, and the one that it never touches."""
CONGESTION = "cubic"
"""The same for all alternatives, whatever the host's default is."""


class Wires(NetnsFabric):
    """A run's namespaces and cables; nobody lives in them."""

    def lay(self, names: Sequence[str]) -> tuple[Networks, dict[str, Place]]:
        """Make a node for every name. Raises MachineError."""
        networks = self.create([NodeSpec(name, name, "host", n, n) for n, name in enumerate(names)])
        assert self._plan is not None
        return networks, self._places(self._plan)


@dataclass(frozen=True, slots=True)
class Lab:
    """Nodes by name, and the agent that shapes their links."""

    agent: Agent
    networks: Networks
    places: Mapping[str, Place]

    @property
    def switch(self) -> str:
        """Path of the namespace where the switch's own address is."""
        assert self.networks.switch_netns is not None
        return self.networks.switch_netns

    def netns(self, node: str) -> str:
        """Path of a node's namespace."""
        path = self.places[node].nic.netns
        assert path is not None
        return path


@contextmanager
def lab(names: Sequence[str], setup: Setup) -> Iterator[Lab]:
    """Nodes for the length of a ``with`` block; other runs on a small machine wait meanwhile.

    Raises MachineError where they cannot be made.
    """
    with machine(setup.say):
        context = RunContext(new_id(), setup.directory, secrets.token_hex(16), quiet=True)
        fabric = Wires(context)
        try:
            networks, places = fabric.lay(names)
            for place in places.values():
                shape_route(place.nic.netns, place.nic.index, CONGESTION, None)
            yield Lab(fabric.agent, networks, places)
        finally:
            with shielded():
                fabric.destroy()
