"""A replay's traffic: per node one TCP flow to the switch's own address and one from it.

So each direction of each link is filled by itself and shared with nobody. All flows connect on idle links, where
the least round-trip time is to be seen, and begin to send together before t0.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.errors import ExperimentError
from testbed.fabric.base import DATA_PORT, Place
from testbed.fabric.enter import command_in
from testbed.links.client import LinkReport
from testbed.process import environment, module_command
from testbed.record.asked import Asked
from testbed.record.directory import RunDirectory
from testbed.record.gather import Trip
from testbed.scenario.expand import expand
from testbed.scenario.load import Loaded
from testbed.session.host_watch import HostWatch
from testbed.session.judgement import ways_of
from testbed.session.progress import Progress
from testbed.session.session import Session

SWITCH_PORT = 7100
"""The switch listens for peer n's flow at this port + n."""
START_S, START_EACH_S = 1.5, 0.4
"""From asking for the flows until they may send: their processes start, and connect on idle links."""
FILL_S, FILL_TRIPS = 1.0, 12
"""From then until t0, and so many round trips besides: the flows fill the queues."""
_END_S = 2.0


@dataclass(frozen=True)
class Flowed:
    """What the links carried, and the least round-trip times to the switch."""

    report: LinkReport
    trips: list[Trip]


def fill(
    session: Session, loaded: Loaded, wall_s: float, progress: Progress, directory: RunDirectory
) -> Flowed:
    """Start every flow before t0, so that the links are full from the beginning, and end them after."""
    begin_ns = time.monotonic_ns() + int((START_S + START_EACH_S * len(session.places)) * 1e9)
    t0_ns = begin_ns + int((FILL_S + FILL_TRIPS * _longest_trip_s(loaded)) * 1e9)
    stop_ns = t0_ns + int(wall_s * 1e9)
    agent = session.fabric.agent
    agent.start(t0_ns, loaded.timeline().changes(0.0, float("inf")))
    switch = [
        (place.spec.name, process)
        for place in session.places.values()
        for process in _switch_flows(session, place, begin_ns, stop_ns)
    ]
    try:
        for name, place in session.places.items():
            session.switchboard.send(
                name,
                "flow",
                address=place.data_address,
                switch=session.networks.switch_address,
                switch_port=SWITCH_PORT + place.spec.peer,
                begin_at_ns=begin_ns,
                stop_at_ns=stop_ns,
            )
        progress.say(f"{len(session.places)} nodes, both directions, {wall_s:g} s")
        done: dict[str, Any] = {}
        _wait(session, t0_ns, done)
        watch = HostWatch(t0_ns, directory.link)
        try:
            # A little early: the flows end at the same instant, and the report is of full links.
            _wait(session, stop_ns, done)
        finally:
            watch.stop()
        report = agent.stop()
        _wait(session, stop_ns + int(_END_S * 1e9), done, len(session.places))
    finally:
        said = _end(switch)
    return Flowed(report, [*_trips(done.items()), *_trips(said)])


def _longest_trip_s(loaded: Loaded) -> float:
    """The longest round trip to the switch, as far as it is known at t0."""
    timeline = loaded.timeline()
    ways = ways_of(loaded.wall(), Asked(timeline.initial, ()))
    return max(ways.round_trip_s(node.name, None)[1] for node in expand(loaded.wall()))


def _trips(said: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Trip]:
    """The round trips that flows between a node and the switch have seen."""
    for node, summary in said:
        if summary.get("least_rtt_us") is not None:
            yield node, None, summary["least_rtt_us"] / 1e6


def _switch_flows(
    session: Session, place: Place, begin_ns: int, stop_ns: int
) -> list[subprocess.Popen[bytes]]:
    """The switch's two flows with one node, in the namespace where the switch's address is."""
    flows = [
        ("serve", session.networks.switch_address, SWITCH_PORT + place.spec.peer),
        ("blast", place.data_address, DATA_PORT),
    ]
    return [
        subprocess.Popen(
            _at_switch(session, what, address, str(port), str(stop_ns), "--begin", str(begin_ns)),
            stdout=subprocess.PIPE,
            env=environment(),
        )
        for what, address, port in flows
    ]


def _at_switch(session: Session, *arguments: str) -> list[str]:
    """The command line of a flow where the switch's address is."""
    parent = str(os.getpid())
    command = module_command("testbed.session.flow", *arguments, "--parent", parent)
    inside = session.networks.switch_netns
    return command_in(inside, os.getpid(), command) if inside else command


def _wait(session: Session, until_ns: int, done: dict[str, Any], enough: int | None = None) -> None:
    """Until then, or until ``enough`` nodes are done; raises when a node or the agent is lost meanwhile."""
    left_s = (until_ns - time.monotonic_ns()) / 1e9
    if enough is not None and len(done) >= enough:
        return
    for node, message in session.messages(left_s):
        if message["type"] not in {"done", "up", "hello"}:
            raise ExperimentError(f"node {node!r} sent {message['type']!r} during a replay")
        if message["type"] == "done":
            done[node] = message["summary"]
        if enough is not None and len(done) >= enough:
            return


def _end(
    processes: list[tuple[str, subprocess.Popen[bytes]]],
) -> list[tuple[str, Mapping[str, Any]]]:
    """Await the switch's flows; what each said, with its node's name."""
    said = []
    for node, process in processes:
        try:
            output, _ = process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        if process.returncode or not output:
            raise ExperimentError(
                f"a flow between the switch and node {node!r} ended before its time"
            )
        said.append((node, json.loads(output)))
    return said
