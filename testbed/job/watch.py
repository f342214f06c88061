"""A job's connections, and what its nodes' interfaces carry, watched from before its start until after its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from testbed.job.moved import carried, connection, owners
from testbed.links.namespaces import OWN
from testbed.record.events import Event

if TYPE_CHECKING:
    from testbed.fabric.base import Place
    from testbed.links.client import Agent


class Watch:
    """Watches the nodes at ``places`` until ``end``. Raises ExperimentError where the agent cannot."""

    def __init__(self, agent: Agent, places: Mapping[str, Place]) -> None:
        netns = {node: place.nic.netns or OWN for node, place in places.items()}
        self._agent = agent
        self._data = {node: place.nic.index for node, place in places.items()}
        self._before = agent.watch(netns)
        self.missed: list[str] = []
        """Why connections are missing, a sentence for each node of which some are; known at the end."""

    def end(self, seconds: Callable[[int], float]) -> Iterator[tuple[str, Event]]:
        """By node, a record of everything that was seen. ``seconds``: an instant in the run's."""
        watched = self._agent.watched()
        known = owners({node: found.interfaces for node, found in watched.items()}, self._data)
        for node, found in watched.items():
            for interface in carried(node, self._before[node], found.interfaces, self._data[node]):
                yield node, interface
            for seen in found.sockets:
                yield node, connection(node, seen, known, seconds)
            if found.missed is not None:
                self.missed.append(f"{node}: {found.missed}")
