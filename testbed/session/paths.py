"""The links between workers and the server, and how many workers share each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypedDict

from testbed.fabric.base import NodeSpec, RackSpec
from testbed.train.job import Shared

Hop = tuple[str, Literal["up", "down"]]


class Ways(TypedDict):
    """Fields of a worker's ``Job``."""

    way_up: tuple[Shared, ...]
    way_down: tuple[Shared, ...]


class Paths:
    """Ways of every worker to the first server, and back."""

    def __init__(self, specs: Sequence[NodeSpec], racks: Sequence[RackSpec]) -> None:
        self._rack = {member: rack.name for rack in racks for member in rack.members}
        self._server = next(spec.name for spec in specs if spec.role == "server")
        workers = [spec.name for spec in specs if spec.role == "worker"]
        self._up = Counter(hop for name in workers for hop in self._hops(name, self._server))
        self._down = Counter(hop for name in workers for hop in self._hops(self._server, name))

    def of(self, worker: str) -> Ways:
        """Each link with the number of workers whose messages pass it that way."""
        up, down = self._hops(worker, self._server), self._hops(self._server, worker)
        return {
            "way_up": tuple(Shared(*hop, self._up[hop]) for hop in up),
            "way_down": tuple(Shared(*hop, self._down[hop]) for hop in down),
        }

    def _hops(self, source: str, sink: str) -> list[Hop]:
        here, there = self._rack.get(source), self._rack.get(sink)
        hops: list[Hop] = [(source, "up")]
        if here != there:
            hops += [(here, "up")] if here else []
            hops += [(there, "down")] if there else []
        return [*hops, (sink, "down")]
