"""Cross traffic of one trial on real links: who sends to whom, when, and what came of it.

The bursts of every flow are the scenario's and count from the trial's own t0: each algorithm meets
the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.errors import ExperimentError, MachineError
from testbed.records.events import SCHEMA
from testbed.runner.cross_traffic_node import PROGRAM, FlowEnds, missing
from testbed.runner.session import Session
from testbed.scenario.expand import DIRECTIONS
from testbed.scenario.link_state import LinkDirection
from testbed.scenario.model import Scenario
from testbed.scenario.node_timeline import Flow, NodeChange, flows, node_changes
from testbed.scenario.timeline import Timeline
from testbed.topology import NodePlacement

TRAFFIC_PORT = 7200
"""Flow n is sunk at this port + n."""
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def check(flows: Sequence[Flow], fabric: str, congestion: str | None) -> None:
    """Raises MachineError for traffic that cannot be made. ``congestion``: the scenario's."""
    if flows and fabric not in ("docker", "swarm") and shutil.which(PROGRAM) is None:
        raise missing()
    for name in {flow.congestion for flow in flows if flow.congestion not in {None, congestion}}:
        _check_congestion(str(name))


def _check_congestion(name: str) -> None:
    """Nodes have no privilege: they may select what the host allows to everyone.

    In a network namespace of its own a process cannot see what that is; iperf3 will tell.
    """
    available = _AVAILABLE.read_text().split()
    allowed = _ALLOWED.read_text().split() if _ALLOWED.exists() else available
    if name in allowed:
        return
    if name not in available:
        raise MachineError(
            f"cross traffic asks for the congestion control {name!r}, which this kernel has not "
            "loaded",
            fix=f"Available: {', '.join(available)}; others may come with 'modprobe tcp_{name}'",
        )
    setting = " ".join([*allowed, name])
    raise MachineError(
        f"cross traffic asks for the congestion control {name!r}, which nodes may not select",
        fix=f"Allow it: sysctl -w net.ipv4.tcp_allowed_congestion_control='{setting}'",
    )


def crossed_links(flows: Iterable[Flow], racks: Mapping[str, Sequence[str]]) -> set[str]:
    """Names of the links that cross traffic may be on: those of both ends, and of their racks."""
    nodes = {node for flow in flows for node in (flow.source, flow.sink)}
    return nodes | {rack for rack, members in racks.items() if nodes & set(members)}


class CrossTraffic:
    """The flows of one trial. ``congestion``: the scenario's. ``write`` gets the records."""

    def __init__(
        self,
        flows: Sequence[Flow],
        places: Mapping[str, NodePlacement],
        congestion: str | None,
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        self._flows = {
            flow.name: _ends(flow, number, places, congestion) for number, flow in enumerate(flows)
        }
        self._write = write
        self._tests = dict.fromkeys(self._flows, 0)

    @property
    def nodes(self) -> set[str]:
        """The nodes that take part."""
        return {node for name in self._flows for node in self.ends(name)}

    def part(self, node: str) -> dict[str, Any]:
        """Return what a node is told of the traffic before it is ready."""
        flows = self._flows.values()
        return {
            "sources": [ends.to_json() for ends in flows if ends.flow.source == node],
            "sinks": [ends.to_json() for ends in flows if ends.flow.sink == node],
        }

    def concerns(self, node: str, record: Mapping[str, Any]) -> bool:
        """Return whether a node is at an end of the flow that a record is about."""
        return record["flow"] in self._flows and node in self.ends(record["flow"])

    def take(self, record: dict[str, Any]) -> None:
        """Record what a node reports of a flow."""
        self._write({"v": SCHEMA, **record})
        self._tests[record["flow"]] += len(record.get("tests", ())) * (record["kind"] == "sent")

    def tests(self) -> dict[str, int]:
        """How many tests of each flow have sent something."""
        return dict(self._tests)

    def ends(self, flow: str) -> tuple[str, str]:
        """The names of a flow's source and sink."""
        return self._flows[flow].flow.source, self._flows[flow].flow.sink


def failure(
    record: Mapping[str, Any],
    ends: tuple[str, str],
    racks: Mapping[str, Sequence[str]],
    timeline: Timeline,
    changes: Iterable[NodeChange],
) -> ExperimentError | None:
    """Return an error for a burst that sent nothing, unless the scenario is the reason."""
    if record["kind"] == "stopped":
        return _named(record, ends, f"the server ended with status {record['code']}")
    if record["kind"] == "received" or record["bytes"] or not _serious(record):
        return None
    start, stop = float(record["due_s"]), float(record["stop_s"])
    hit = {change.node for change in changes if change.time_s <= stop and change.action != "resume"}
    if hit & set(ends) or _interrupted(timeline, _path(ends, racks), start, stop):
        return None
    return _named(record, ends, str(record["error"]))


def _serious(record: Mapping[str, Any]) -> bool:
    """A short burst may find the server between two tests; one that goes on trying may not."""
    error = str(record["error"] or "")
    passing = not error or error.startswith("unable to connect") or "busy" in error
    return record["kind"] == "stalled" or not passing


def _named(record: Mapping[str, Any], ends: tuple[str, str], what: str) -> ExperimentError:
    flow = f"cross traffic {record['flow']!r} from {ends[0]!r} to {ends[1]!r}"
    return ExperimentError(f"{flow}: iperf3 says: {what}")


def _path(ends: tuple[str, str], racks: Mapping[str, Sequence[str]]) -> set[LinkDirection]:
    source, sink = ends
    up = {name for name, members in racks.items() if source in members}
    down = {name for name, members in racks.items() if sink in members}
    links = {source, sink, *up, *down}
    return {LinkDirection(link, direction) for link in links for direction in DIRECTIONS}


def _interrupted(
    timeline: Timeline, path: set[LinkDirection], start_s: float, stop_s: float
) -> bool:
    """Return whether some link on the path had no service at some time."""
    if any(not timeline.rate_at(end, start_s) for end in path):
        return True
    return any(
        change.end in path and not change.shape.rate_bits
        for change in timeline.changes(start_s, stop_s)
    )


def _ends(
    flow: Flow, number: int, places: Mapping[str, NodePlacement], congestion: str | None
) -> FlowEnds:
    """The scenario's own congestion control is on the nodes' routes: no node has to select it."""
    return FlowEnds(
        replace(flow, congestion=None) if flow.congestion == congestion else flow,
        places[flow.source].data_address,
        places[flow.sink].data_address,
        TRAFFIC_PORT + number,
    )


END_S = 20.0
"""How long nodes may take to end their cross traffic."""

Take = Callable[[str, dict[str, Any]], None]


class TrialCrossTraffic(CrossTraffic):
    """All flows of ``scenario``, whose links follow ``timeline``. ``write`` gets their records."""

    def __init__(
        self,
        session: Session,
        scenario: Scenario,
        timeline: Timeline,
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        all_flows = flows(scenario)
        super().__init__(all_flows, session.places, scenario.congestion, write)
        self._session, self._timeline = session, timeline
        self._changes = node_changes(scenario)
        self._racks = {rack.name: rack.members for rack in session.racks}
        self.links = crossed_links(all_flows, self._racks)
        """Names of the links that the flows may be on."""

    def take(self, record: dict[str, Any]) -> None:
        """A burst. Raises ExperimentError for one that ``failure`` finds."""
        super().take(record)
        ends = self.ends(record["flow"])
        if error := failure(record, ends, self._racks, self._timeline, self._changes):
            raise error

    def end(self, take: Take) -> None:
        """Sources first: a sink has something to say of a test only when that has been ended.

        ``take`` gets what nodes say meanwhile.
        """
        for part in ("sources", "sinks"):
            present = self.nodes & set(self._session.control.connected())
            for node in present:
                self._session.send_best_effort(node, "end", part=part, tests=self.tests())
            self._session.await_all("ended", present, END_S, take)
