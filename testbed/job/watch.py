"""Everything by which a job's bytes can leave a process, watched from before its start until after its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from testbed.job.copies import CopyWatch
from testbed.job.memory import MemoryWatch
from testbed.job.moved import carried, connected, connection, copied, mapped, owners
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
        self._copies, self._memory = CopyWatch(netns), MemoryWatch(netns)
        self.unwatched: list[str] = []
        """What was not watched, a sentence each; known at the end."""
        self.missed: list[str] = []
        """Why connections are missing, a sentence for each node of which some are; known at the end."""

    def channel(self) -> AbstractContextManager[int]:
        """For a process that is started meanwhile: ``Fabric.launch``'s ``copies``."""
        return self._copies.channel()

    def stop(self) -> None:
        """Watch memory no longer; safe to call twice. Connections are the agent's, which ends with the run."""
        self._copies.end()
        self._memory.end()

    def end(self, seconds: Callable[[int], float]) -> Iterator[tuple[str, Event]]:
        """By node, a record of everything that was seen. ``seconds``: an instant in the run's."""
        watched = self._agent.watched()
        known = owners({node: found.interfaces for node, found in watched.items()}, self._data)
        for node, found in watched.items():
            for interface in carried(node, self._before[node], found.interfaces, self._data[node]):
                yield node, interface
            for seen in found.sockets:
                yield node, connection(node, seen, known, seconds)
            for join in connected(found.joined):
                yield node, join
            if found.missed is not None:
                self.missed.append(f"{node}: {found.missed}")
        for record in [*map(copied, self._copies.end()), *map(mapped, self._memory.end())]:
            yield record.node, record
        why = sorted(self._copies.unwatched | self._memory.unwatched)
        self.unwatched = [
            *self.missed,
            *sorted({found.unlooked for found in watched.values() if found.unlooked}),
            *(f"memory that nodes share was not watched: {each}" for each in why),
        ]
