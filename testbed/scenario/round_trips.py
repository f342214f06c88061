"""How long a packet and its answer may be under way between the server and its workers."""

from __future__ import annotations

from typing import NamedTuple

from testbed.scenario.expand import DIRECTIONS, expand, racks
from testbed.scenario.model import Scenario
from testbed.scenario.shape import End
from testbed.scenario.timeline import Timeline
from testbed.units import Duration


class RoundTrip(NamedTuple):
    """Delays, jitters and waits for slots of all links on the way there and back."""

    time_s: float
    server: str = ""
    worker: str = ""

    def __str__(self) -> str:
        return f"{Duration(self.time_s)} between {self.server} and {self.worker} with delays, jitter and slots"


def longest_round_trip(scenario: Scenario, timeline: Timeline) -> RoundTrip:
    """The longest of all, every link at its slowest; in a rack both nodes do without the rack's link."""
    delays = timeline.longest_delays_s()
    rack_of = {node: rack.name for rack in racks(scenario) for node in rack.members}

    def both_ways(link: str | None) -> float:
        return sum(delays[End(link, direction)] for direction in DIRECTIONS) if link else 0.0

    def between(server: str, worker: str) -> float:
        here, there = rack_of.get(server), rack_of.get(worker)
        passed = [server, worker, *((here, there) if here != there else ())]
        return round(sum(map(both_ways, passed)), 9)

    nodes = expand(scenario)
    workers = [node for node in nodes if node.role == "worker"]
    return max(
        (
            RoundTrip(between(server.name, worker.name), server.name, worker.name)
            for server in nodes
            if server.role == "server"
            for worker in workers
        ),
        key=lambda trip: trip.time_s,
        default=RoundTrip(0.0),
    )
