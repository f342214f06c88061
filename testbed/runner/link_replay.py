"""``testbed replay``: bulk traffic on every link direction while it follows its history, and its
certificate.

So each direction of each link is filled by itself and shared with nobody. All flows connect on idle
links, where the least round-trip time is to be seen, and begin to send together before t0.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testbed.errors import ExperimentError, InputError
from testbed.fabric.node_launcher import command_in
from testbed.fidelity.evidence import Evidence, Trip, gather
from testbed.fidelity.reference import RequestedLinks
from testbed.fidelity.verdict import Verdict, judge_filled
from testbed.links.agent.client import LinkReport
from testbed.process import environment, module_command
from testbed.records.intervals import IntervalSet
from testbed.records.link_log import LinkLog
from testbed.records.run_directory import LINKS, RunDirectory, read_jsonl
from testbed.runner.judge import ways_of, write_certificate
from testbed.runner.manifest_writer import describe
from testbed.runner.node_events import HostWatch
from testbed.runner.preflight import check
from testbed.runner.progress import Progress
from testbed.runner.session import Session, backlog_drops, shape
from testbed.runner.signals import interruptible, machine
from testbed.scenario.diagnostics import Names
from testbed.scenario.expand import expand, racks
from testbed.scenario.link_model import NodeEvent, TraceEvent
from testbed.scenario.link_state import FRAME_BYTES
from testbed.scenario.load import Loaded, dump, fingerprint
from testbed.scenario.model import Scenario
from testbed.scenario.validate_links import check_events
from testbed.topology import DATA_PORT, NodePlacement
from testbed.traces.readers import read
from testbed.units import Rate

SWITCH_PORT = 7100
"""The switch listens for peer n's flow at this port + n."""
START_S, START_EACH_S = 1.5, 0.4
"""From asking for the flows until they may send: their processes start, and connect on idle
links."""
FILL_S, FILL_TRIPS = 1.0, 12
"""From then until t0, and so many round trips besides: the flows fill the queues."""
_END_S = 2.0


@dataclass(frozen=True)
class Flowed:
    """The report of what the links carried, and the least round-trip times to the switch."""

    report: LinkReport
    trips: list[Trip]


def fill(
    session: Session, loaded: Loaded, wall_s: float, progress: Progress, directory: RunDirectory
) -> Flowed:
    """Start every flow before t0, so that the links are full from the beginning, and end them
    after."""
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
    ways = ways_of(loaded.wall(), RequestedLinks(timeline.initial, ()))
    return max(ways.round_trip_s(node.name, None)[1] for node in expand(loaded.wall()))


def _trips(said: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Trip]:
    """The round trips that flows between a node and the switch have seen."""
    for node, summary in said:
        if summary.get("least_rtt_us") is not None:
            yield node, None, summary["least_rtt_us"] / 1e6


def _switch_flows(
    session: Session, place: NodePlacement, begin_ns: int, stop_ns: int
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
    command = module_command("testbed.runner.bulk_flow", *arguments, "--parent", parent)
    inside = session.networks.switch_netns
    return command_in(inside, os.getpid(), command) if inside else command


def _wait(session: Session, until_ns: int, done: dict[str, Any], enough: int | None = None) -> None:
    """Until then, or until ``enough`` nodes are done; raises when a node or the agent is lost
    meanwhile."""
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


FLOW_CONGESTION = "cubic"
"""Keeps a queue filled; bbr, where it is the default, lets it run dry for 200 ms every ten
seconds."""
QUEUE_S, LEAST_QUEUE_PACKETS = 0.05, 20
"""A queue shorter than so many packets cannot be kept filled: slow traces have that."""
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
REPORTED = (
    "link",
    "direction",
    "asked_bits",
    "delivered_bits",
    "ratio",
    "mape_step",
    "mape_1s",
    "worst_1s",
    "busy_share",
    "busy_ratio",
    "busy_mape_1s",
    "busy_worst_1s",
    "busy_mape_step",
    "excess_share",
    "lateness_ms",
)
"""Fields of a link direction that ``--json`` prints."""


@dataclass(frozen=True)
class ReplayedLinks:
    """How the links followed their histories."""

    directory: Path
    verdict: Verdict
    report: LinkReport
    not_replayed: list[str]
    """Parts of the scenario that only a run carries out."""

    def to_json(self) -> dict[str, Any]:
        """``{"verdict", "reasons": [...], "measures": {...}, "not_replayed": [...], "links":
        [...]}``."""
        links = [asdict(end) for end in self.report.links]
        return {
            **self.verdict.to_json(),
            "not_replayed": self.not_replayed,
            "links": [{key: link[key] for key in REPORTED} for link in links],
        }


def trace_scenario(path: Path, form: str | None = None, column: str | None = None) -> Loaded:
    """A server and a worker whose links follow the trace at ``path`` in both directions, again and
    again.

    ``form`` and ``column`` as ``read`` takes them. Raises InputError for a trace that cannot be
    read or followed.
    """
    trace = read(path, format=form, column=column)
    fastest = max(trace.rates_bits)
    if not fastest:
        raise InputError("its rate is 0 throughout: nothing can be sent", where=str(path))
    short = fastest / 8 * QUEUE_S < LEAST_QUEUE_PACKETS * FRAME_BYTES
    queue = f"{LEAST_QUEUE_PACKETS} packets" if short else f"{QUEUE_S * 1e3:g} ms"
    end = {"rate": str(Rate(fastest)), "queue": queue}
    event = {
        "kind": "trace",
        "links": ["all"],
        "file": path.name,
        "column": column,
        "at_end": "loop",
    }
    scenario = Scenario.model_validate(
        {
            "name": "replay",
            "nodes": {"server": {"role": "server"}, "worker": {"role": "worker", "count": 1}},
            "links": {"default": {"up": end, "down": end}},
            "events": [event],
            **({"congestion": FLOW_CONGESTION} if _can_fill() else {}),
        }
    )
    traces = {event.key: trace for event in scenario.events if isinstance(event, TraceEvent)}
    if wrong := [problem.message for problem in check_events(scenario, traces, Names(scenario))]:
        raise InputError("; ".join(wrong), where=str(path))
    return Loaded(scenario, path, traces, dump(scenario), fingerprint(scenario, traces))


def _can_fill() -> bool:
    return FLOW_CONGESTION in _AVAILABLE.read_text().split()


def replay(
    loaded: Loaded, fabric: str, out: Path, seconds: float, *, quiet: bool, keep_failed: bool
) -> ReplayedLinks:
    """Fill every link direction of ``loaded`` for ``seconds`` of model time."""
    scenario = loaded.wall()
    left_out = not_replayed(scenario)
    least = check(loaded, fabric, filled=True)
    progress, wall_s = Progress(quiet), seconds * loaded.scenario.dilation
    directory = RunDirectory.create(
        out, scenario_name=scenario.name, algorithm="replay", seed=0, content_hash=loaded.hash
    )
    with interruptible(), directory, machine(progress.say):
        progress.say(f"starting {len(expand(scenario))} nodes on the {fabric} fabric")
        if left_out:
            progress.say(f"of this scenario a replay leaves out: {', '.join(left_out)}")
        with Session(
            expand(scenario),
            fabric,
            directory.path,
            quiet=quiet,
            keep_failed=keep_failed,
            racks=racks(scenario),
            least=least,
        ) as session:
            held = shape(session, loaded, loaded.timeline(), directory.link)
            describe(
                directory,
                loaded,
                session.specs,
                held["links"],
                fabric=session.fabric_name,
                algorithm={"name": "replay"},
                seed=0,
            )
            dropped = backlog_drops()
            flowed = fill(session, loaded, wall_s, progress, directory)
            dropped = backlog_drops() - dropped
        verdict = _conclude(directory, loaded, held, flowed, wall_s, dropped)
    return ReplayedLinks(directory.path, verdict, flowed.report, left_out)


def not_replayed(scenario: Scenario) -> list[str]:
    """Return what a scenario asks for besides links, in its own words: bulk traffic takes the place
    of all of it."""
    kinds = dict.fromkeys(event.kind for event in scenario.events if isinstance(event, NodeEvent))
    return [*(["traffic"] if scenario.traffic else []), *kinds]


def filled_evidence(
    report: LinkReport,
    history: LinkLog,
    asked: RequestedLinks,
    wall_s: float,
    held: Mapping[str, Any],
    dropped: int,
    **paths: Any,
) -> Evidence:
    """The evidence of links that were filled for ``wall_s``.

    ``held``: what was read back before t0; ``dropped``: packets that the host itself dropped;
    ``paths``: further arguments of ``gather``.
    """
    evidence = gather(
        report.to_json()["links"],
        history,
        asked,
        seconds=wall_s,
        processors=os.cpu_count() or 1,
        under_way=IntervalSet([(0.0, wall_s)]),
        held=held["links"],
        **paths,
    )
    return replace(evidence, foreign_drops={"the host's receive backlog": dropped})


def _conclude(
    directory: RunDirectory,
    loaded: Loaded,
    held: Mapping[str, Any],
    flowed: Flowed,
    wall_s: float,
    dropped: int,
) -> Verdict:
    """Find the verdict; write certificate and summary."""
    history = LinkLog(read_jsonl(directory.path / LINKS), rates=False)
    under_way = IntervalSet([(0.0, wall_s)])
    until_s = max((link.to_s for link in flowed.report.links), default=0.0)
    evidence = filled_evidence(
        flowed.report,
        history,
        RequestedLinks.of(loaded.timeline(), until_s),
        wall_s,
        held,
        dropped,
        trips=flowed.trips,
        ways=ways_of(
            loaded.wall(), RequestedLinks(loaded.timeline().initial, ())
        ),  # trips are timed before t0
    )
    left_out = not_replayed(loaded.scenario)
    verdict = write_certificate(
        directory,
        evidence,
        history,
        under_way,
        loaded.scenario.dilation,
        judge_filled(evidence),
        left_out,
    )
    found = asdict(verdict)
    summary = {
        "verdict": found.pop("state"),
        **found,
        "not_replayed": left_out,
        **flowed.report.to_json(),
    }
    directory.write_json("summary.json", summary)
    return verdict
