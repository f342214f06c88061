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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.algorithm import Algorithm
from testbed.errors import ExperimentError, InputError
from testbed.fabric.node_launcher import command_in
from testbed.fidelity.evidence import Trip
from testbed.fidelity.reference import RequestedLinks
from testbed.fidelity.verdict import Verdict, judge_filled
from testbed.links.agent.client import LinkReport
from testbed.process import environment, module_command
from testbed.records.intervals import IntervalSet
from testbed.records.link_log import LinkLog
from testbed.records.run_directory import LINKS, SUMMARY, read_jsonl
from testbed.runner.experiment import Experiment
from testbed.runner.judge import link_evidence, path_model, requested_links, write_certificate
from testbed.runner.node_events import HostWatch
from testbed.runner.preflight import check
from testbed.runner.progress import Progress, duration
from testbed.runner.real_links import RealTrial
from testbed.runner.session import Session, swarm_options
from testbed.runner.signals import interruptible, machine
from testbed.runner.trial import TrialPlan
from testbed.scenario.diagnostics import Names
from testbed.scenario.expand import racks
from testbed.scenario.link_model import NodeEvent, TraceEvent
from testbed.scenario.link_state import FRAME_BYTES
from testbed.scenario.load import Loaded, dump, scenario_hash
from testbed.scenario.model import Scenario
from testbed.scenario.validate_links import check_events
from testbed.topology import DATA_PORT, NodePlacement
from testbed.traces.readers import read
from testbed.units import Rate

SWITCH_PORT = 7100
"""The switch listens for peer n's flow at this port + n."""
START_S, START_EACH_S = 1.5, 0.4
"""From asking for the flows until they may send: processes start and connect."""
FILL_S, FILL_TRIPS = 1.0, 12
"""From then until t0, and so many round trips besides: the flows fill the queues."""
_END_S = 2.0


class LinkReplayTrial(RealTrial):
    """Bulk flows fill every link direction for ``seconds`` of wall time. ``left_out``: parts of the
    scenario that are not replayed."""

    has_steps = False

    def __init__(
        self, session: Session, plan: TrialPlan, seconds: float, left_out: Sequence[str]
    ) -> None:
        super().__init__(session, plan)
        self._seconds, self._left_out = seconds, left_out
        self._before_t0 = RequestedLinks(self.timeline.initial, ())
        self._trips: list[Trip] = []
        self._done: dict[str, Any] = {}
        self.verdict = Verdict("invalid", [])

    def _perform(self) -> None:
        """Start all flows before t0, so that links are full from then on, and end them after."""
        session, places = self.session, self.session.places
        begin_ns = time.monotonic_ns() + int((START_S + START_EACH_S * len(places)) * 1e9)
        t0_ns = begin_ns + int((FILL_S + FILL_TRIPS * self._longest_trip_s()) * 1e9)
        stop_ns = t0_ns + int(self._seconds * 1e9)
        self._follow(t0_ns)
        switch = [
            (placement.spec.name, process)
            for placement in places.values()
            for process in _switch_flows(session, placement, begin_ns, stop_ns)
        ]
        try:
            for name, placement in places.items():
                ahead_ns = session.ahead_ns(name)
                session.control.send(
                    name,
                    "flow",
                    address=placement.data_address,
                    switch=session.networks.switch_address,
                    switch_port=SWITCH_PORT + placement.spec.peer,
                    begin_at_ns=begin_ns + ahead_ns,
                    stop_at_ns=stop_ns + ahead_ns,
                )
            wall_s = (stop_ns - time.monotonic_ns()) / 1e9
            self.progress.say(
                f"{len(places)} nodes, both directions, {self._seconds:g} s once all queues are "
                f"full: over in about {duration(wall_s)}, then the verdict"
            )
            self._wait(t0_ns)
            self._watches.append(HostWatch(t0_ns, self.directory.link))
            # A little early: the flows end at the same instant, and the report is of full links.
            self._wait(stop_ns)
            self._watches.pop().stop()
            self._stop_links()
            self._wait(stop_ns + int(_END_S * 1e9), len(places))
        except BaseException:  # what their ends would say is not why the replay ended
            for _, process in switch:
                process.kill()
                process.communicate()
            raise
        self._trips += [*_trips(self._done.items()), *_trips(_end(switch))]

    def _longest_trip_s(self) -> float:
        """The longest round trip to the switch, as far as it is known at t0."""
        paths = path_model(self.scenario, self._before_t0)
        return max(paths.round_trip_s(name, None)[1] for name in self.specs)

    def _wait(self, until_ns: int, enough: int | None = None) -> None:
        """Wait, or until ``enough`` nodes are done; raises for a lost node or agent."""
        if enough is not None and len(self._done) >= enough:
            return
        for node, message in self.session.messages((until_ns - time.monotonic_ns()) / 1e9):
            if message["type"] not in {"done", "up", "hello"}:
                raise ExperimentError(f"node {node!r} sent {message['type']!r} during a replay")
            if message["type"] == "done":
                self._done[node] = message["summary"]
            if enough is not None and len(self._done) >= enough:
                return

    def conclude(self) -> dict[str, Any]:
        """Find the verdict; write certificate and summary."""
        history = LinkLog(read_jsonl(self.directory.path / LINKS), rates=False)
        under_way = IntervalSet([(0.0, self._seconds)])
        evidence = link_evidence(
            self.outcome,
            history,
            requested_links(self.plan, self.outcome),
            path_model(self.scenario, self._before_t0),  # trips are timed before t0
            seconds=self._seconds,
            under_way=under_way,
            trips=self._trips,
        )
        self.verdict = write_certificate(
            self.plan, evidence, history, under_way, judge_filled(evidence), self._left_out
        )
        about = asdict(self.verdict)
        summary = {
            "verdict": about.pop("state"),
            **about,
            "not_replayed": self._left_out,
            "links": self.outcome.link_reports,
        }
        self.directory.write_json(SUMMARY, summary)
        return summary


def _trips(summaries: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Trip]:
    """The round trips that flows between a node and the switch have seen."""
    for node, summary in summaries:
        if summary.get("least_rtt_us") is not None:
            yield node, None, summary["least_rtt_us"] / 1e6


def _switch_flows(
    session: Session, placement: NodePlacement, begin_ns: int, stop_ns: int
) -> list[subprocess.Popen[bytes]]:
    """The switch's two flows with one node, in the namespace where the switch's address is."""
    flows = [
        ("serve", session.networks.switch_address, SWITCH_PORT + placement.spec.peer),
        ("blast", placement.data_address, DATA_PORT),
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


def _end(
    processes: list[tuple[str, subprocess.Popen[bytes]]],
) -> list[tuple[str, Mapping[str, Any]]]:
    """Await the switch's flows; each one's summary, with its node's name."""
    summaries = []
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
        summaries.append((node, json.loads(output)))
    return summaries


FLOW_CONGESTION = "cubic"
"""Keeps a queue filled; bbr lets it run dry for 200 ms every ten seconds."""
QUEUE_S, LEAST_QUEUE_PACKETS = 0.05, 20
"""A queue shorter than so many packets cannot be kept filled: slow traces have that."""
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
REPORTED = (
    *("link", "direction", "asked_bits", "delivered_bits", "ratio", "mape_step", "mape_1s"),
    *("worst_1s", "busy_share", "busy_ratio", "busy_mape_1s", "busy_worst_1s"),
    *("busy_mape_step", "excess_share", "lateness_ms"),
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
        """``{"verdict", "reasons", "measures", "not_replayed", "links"}``."""
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
    return Loaded(scenario, path, traces, dump(scenario), scenario_hash(scenario, traces))


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
    experiment = Experiment.untrained(loaded, scenario)
    row = {"name": "replay"}
    plan = TrialPlan.create(experiment, Algorithm("none"), 0, out, progress, row)
    with interruptible(), plan.directory, machine(progress.say):
        progress.say(f"starting {len(experiment.specs)} nodes on the {fabric} fabric")
        if left_out:
            progress.say(f"of this scenario a replay leaves out: {', '.join(left_out)}")
        with Session(
            experiment.specs,
            fabric,
            plan.directory.path,
            quiet=quiet,
            keep_failed=keep_failed,
            racks=racks(scenario),
            least=least,
            folder=plan.directory.folder(),
            swarm=swarm_options(scenario, plan.experiment.timeline),
        ) as session:
            trial = LinkReplayTrial(session, plan, wall_s, left_out)
            trial.shape()
            trial.run()
        trial.conclude()
    assert trial.outcome.links is not None, "a replay that has ended has a report"
    return ReplayedLinks(plan.directory.path, trial.verdict, trial.outcome.links, left_out)


def not_replayed(scenario: Scenario) -> list[str]:
    """Return what a scenario asks for besides links, in its own words: a replay leaves it out."""
    kinds = dict.fromkeys(event.kind for event in scenario.events if isinstance(event, NodeEvent))
    return [*(["traffic"] if scenario.traffic else []), *kinds]
