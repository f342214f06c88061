"""The links between workers and the server, and how many workers share each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypedDict

from testbed.fabric.base import NodeSpec, RackSpec
from testbed.scenario.route import route
from testbed.train.job import Shared


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
        self._up = Counter(end for name in workers for end in route(self._rack, name, self._server))
        self._down = Counter(
            end for name in workers for end in route(self._rack, self._server, name)
        )

    def of(self, worker: str) -> Ways:
        """Each link with the number of workers whose messages pass it that way."""
        up = route(self._rack, worker, self._server)
        down = route(self._rack, self._server, worker)
        return {
            "way_up": tuple(Shared(end.link, end.direction, self._up[end]) for end in up),
            "way_down": tuple(Shared(end.link, end.direction, self._down[end]) for end in down),
        }
