"""``testbed replay``: bulk traffic on every link direction while it follows its history, and the report.

Per node one TCP flow to the switch's own address and one from it, so that each direction of each link is
filled by itself and shared with nobody.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.errors import ExperimentError
from testbed.fabric.base import DATA_PORT, Place
from testbed.fabric.builtin import fabrics
from testbed.fabric.enter import command_in
from testbed.links.client import LinkReport
from testbed.links.process import environment, module_command
from testbed.record.directory import RunDirectory
from testbed.record.verdict import Evidence, Verdict, judge
from testbed.scenario.dump import dump
from testbed.scenario.expand import expand
from testbed.scenario.load import Loaded, fingerprint
from testbed.scenario.model import Scenario
from testbed.session.conditions import backlog_drops, describe, shape
from testbed.session.host_watch import stolen_s
from testbed.session.interrupt import interruptible
from testbed.session.lock import machine
from testbed.session.progress import Progress
from testbed.session.run import refuse_unmet
from testbed.session.session import Session
from testbed.traces import read
from testbed.units import Rate

SWITCH_PORT = 7100
"""The switch listens for peer n's flow at this port + n."""
LEAD_S = 3.0
"""From asking for the flows to t0: their processes start, connect and fill the queues."""
REPORTED = ("link", "direction", "asked_bits", "delivered_bits", "ratio", "mape_step", "mape_1s",
            "worst_1s", "lateness_ms")  # fmt: skip
"""What ``--json`` prints of a link direction."""


@dataclass(frozen=True)
class Replayed:
    """How the links followed their histories."""

    directory: Path
    verdict: Verdict
    report: LinkReport

    def to_json(self) -> dict[str, Any]:
        """``{"verdict", "links": [...]}``."""
        links = [asdict(end) for end in self.report.links]
        return {
            "verdict": self.verdict.state,
            "links": [{key: link[key] for key in REPORTED} for link in links],
        }


def trace_scenario(path: Path) -> Loaded:
    """A server and a worker whose links follow the trace at ``path`` in both directions, again and again."""
    trace = read(path)
    fastest = str(Rate(max(trace.rates_bits)))
    end = {"rate": fastest, "queue": "50 ms"}
    scenario = Scenario.model_validate(
        {
            "name": "replay",
            "nodes": {"server": {"role": "server"}, "worker": {"role": "worker", "count": 1}},
            "links": {"default": {"up": end, "down": end}},
            "events": [{"kind": "trace", "links": ["all"], "file": path.name, "at_end": "loop"}],
        }
    )
    traces = {path.name: trace}
    return Loaded(scenario, path, traces, dump(scenario), fingerprint(scenario, traces))


def replay(
    loaded: Loaded, fabric: str, out: Path, seconds: float, *, quiet: bool, keep_failed: bool
) -> Replayed:
    """Fill every link direction of ``loaded`` for ``seconds`` of model time."""
    scenario = loaded.wall()
    refuse_unmet(scenario)
    fabrics.get(fabric, where="--fabric")
    progress, wall_s = Progress(quiet), seconds * loaded.scenario.dilation
    directory = RunDirectory.create(
        out, scenario_name=scenario.name, algorithm="replay", seed=0, content_hash=loaded.hash
    )
    with interruptible(), directory, machine(progress.say):
        progress.say(f"starting {len(expand(scenario))} nodes on the {fabric} fabric")
        with Session(
            expand(scenario), fabric, directory.path, quiet=quiet, keep_failed=keep_failed
        ) as session:
            held = shape(session, loaded, loaded.timeline(), directory.link)
            describe(directory, session, loaded, held, algorithm={"name": "replay"}, seed=0)
            dropped, stolen = backlog_drops(), stolen_s()
            report = _flow(session, loaded, wall_s, progress)
            dropped, stolen = backlog_drops() - dropped, stolen_s() - stolen
        evidence = Evidence(
            seconds=wall_s,
            stolen_share=stolen / (wall_s * (os.cpu_count() or 1)),
            links=report.to_json()["links"],
            foreign_drops={"the host's receive backlog": dropped},
        )
        replayed = Replayed(directory.path, judge(evidence), report)
        directory.write_json(
            "summary.json",
            {
                "verdict": replayed.verdict.state,
                "reasons": replayed.verdict.reasons,
                **report.to_json(),
            },
        )
    return replayed


def _flow(session: Session, loaded: Loaded, wall_s: float, progress: Progress) -> LinkReport:
    """Start every flow before t0, so that the links are full from the beginning, and end them after."""
    t0_ns = time.monotonic_ns() + int(LEAD_S * 1e9)
    stop_ns = t0_ns + int(wall_s * 1e9)
    agent = session.fabric.agent
    agent.start(t0_ns, loaded.timeline().changes(0.0, float("inf")))
    switch = [
        process
        for place in session.places.values()
        for process in _switch_flows(session, place, stop_ns)
    ]
    try:
        for name, place in session.places.items():
            session.switchboard.send(
                name,
                "flow",
                address=place.data_address,
                switch=session.networks.switch_address,
                switch_port=SWITCH_PORT + place.spec.peer,
                stop_at_ns=stop_ns,
            )
        progress.say(f"{len(session.places)} nodes, both directions, {wall_s:g} s")
        # A little early: the flows end at the same instant, and the report is of full links.
        _wait(session, (stop_ns - time.monotonic_ns()) / 1e9)
        return agent.stop()
    finally:
        _end(switch)


def _switch_flows(session: Session, place: Place, stop_ns: int) -> list[subprocess.Popen[bytes]]:
    """The switch's two flows with one node, in the namespace where the switch's address is."""
    flows = [
        ("serve", session.networks.switch_address, SWITCH_PORT + place.spec.peer),
        ("blast", place.data_address, DATA_PORT),
    ]
    return [
        subprocess.Popen(
            _at_switch(session, what, address, str(port), str(stop_ns)),
            stdout=subprocess.DEVNULL,
            env=environment(),
        )
        for what, address, port in flows
    ]


def _at_switch(session: Session, *arguments: str) -> list[str]:
    """The command line of a flow where the switch's address is."""
    parent = str(os.getpid())
    command = module_command("testbed.links.flow", *arguments, "--parent", parent)
    inside = session.networks.switch_netns
    return command_in(inside, os.getpid(), command) if inside else command


def _wait(session: Session, seconds: float) -> None:
    """For ``seconds``; raises when a node or the agent is lost meanwhile."""
    for node, message in session.messages(seconds):
        if message["type"] not in {"done", "up", "hello"}:
            raise ExperimentError(f"node {node!r} sent {message['type']!r} during a replay")


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
