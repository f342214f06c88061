"""Messages of any pattern as groups that can be held against a service curve: those that have one end in common. Pure.

Messages that are under way at the same time on a link direction belong together. If all of such a cluster go to one node,
or all come from one, it is a group; if not, links are shared in a way that no service curve here describes. So it is where
a node sends while it receives: acknowledgements of what comes, 2 to 4 % of it, share its up link with what it sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.record.fluid import Load
from testbed.record.groups import Group
from testbed.record.spans import Spans
from testbed.scenario.shape import End, wire_bytes

VOLLEY_S = 0.002
"""What a node begins to send to several others within so long, it sends side by side."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One message on its way. Times in seconds after t0."""

    source: str
    sink: str
    bytes: int
    sent_s: float
    arrived_s: float
    step: int = 0

    @property
    def ends(self) -> tuple[End, End]:
        """The link directions that are its own."""
        return End(self.source, "up"), End(self.sink, "down")


def flights(messages: Iterable[Mapping[str, Any]]) -> list[Flight]:
    """Of ``MessageRecord`` objects, in the order of their beginning."""
    found = [
        Flight(
            str(m["sender"]), str(m["node"]), int(m["bytes"]), float(m["sent_s"]),
            float(m["arrived_s"]), int(m["step"]),
        )
        for m in messages
    ]  # fmt: skip
    return sorted(found, key=lambda one: one.sent_s)


def stars(under_way: Sequence[Flight]) -> tuple[list[Group], int]:
    """The groups of flights in the order of their beginning, and how many clusters are none."""
    found, entangled = list[Group](), 0
    carried: dict[End, Spans] = {}
    for one in under_way:
        for end in one.ends:
            carried.setdefault(end, Spans()).add(one.sent_s, one.arrived_s)
    for cluster in _clusters(under_way):
        if any(_acknowledges(one, carried) for one in cluster):
            entangled += 1
            continue
        sources, sinks = {one.source for one in cluster}, {one.sink for one in cluster}
        if len(sinks) == 1:
            found.append(_group(cluster, "up", cluster[0].sink))
        elif len(sources) == 1:
            found.append(_group(cluster, "down", cluster[0].source))
        else:
            entangled += 1
    return found, entangled


def _acknowledges(flight: Flight, carried: Mapping[End, Spans]) -> bool:
    """Return True if acknowledgements of other flights are on its link directions meanwhile."""
    against = (End(flight.source, "down"), End(flight.sink, "up"))
    return any(
        end in carried and carried[end].touches(flight.sent_s, flight.arrived_s) for end in against
    )


def _clusters(under_way: Sequence[Flight]) -> Iterator[list[Flight]]:
    """Flights that overlap on a link direction, directly or by way of others."""
    above = list(range(len(under_way)))

    def top(place: int) -> int:
        while above[place] != place:
            above[place] = above[above[place]]
            place = above[place]
        return place

    latest: dict[End, int] = {}
    """Of every link direction, the flight that lasts longest of those that have begun."""
    for place, one in enumerate(under_way):
        for end in one.ends:
            before = latest.get(end)
            if before is not None and under_way[before].arrived_s > one.sent_s:
                above[top(place)] = top(before)
            if before is None or under_way[before].arrived_s <= one.arrived_s:
                latest[end] = place
    found: dict[int, list[Flight]] = {}
    for place, one in enumerate(under_way):
        found.setdefault(top(place), []).append(one)
    yield from found.values()


def _group(cluster: Sequence[Flight], direction: str, hub: str) -> Group:
    loads, begun_s = list[Load](), float("-inf")
    for one in cluster:
        if direction == "up" or one.sent_s - begun_s > VOLLEY_S:
            begun_s = one.sent_s
        link = one.source if direction == "up" else one.sink
        loads.append(Load(link, 8.0 * wire_bytes(one.bytes), begun_s))
    last_s = max(one.arrived_s for one in cluster)
    return Group(cluster[0].step, direction, hub, tuple(loads), last_s)
