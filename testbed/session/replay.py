"""``testbed replay``: bulk traffic on every link direction while it follows its history, and its certificate."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testbed.errors import InputError
from testbed.links.client import LinkReport
from testbed.record.asked import Asked
from testbed.record.directory import LINKS, RunDirectory, read_jsonl
from testbed.record.gather import gather
from testbed.record.history import LinkHistory
from testbed.record.spans import Spans
from testbed.record.verdict import Evidence, Verdict, judge_filled
from testbed.scenario.check_events import check_events
from testbed.scenario.dump import dump
from testbed.scenario.events import NodeEvent, TraceEvent
from testbed.scenario.expand import expand, racks
from testbed.scenario.load import Loaded, fingerprint
from testbed.scenario.model import Scenario
from testbed.scenario.names import Names
from testbed.scenario.shape import FRAME_BYTES
from testbed.session.conditions import backlog_drops, shape
from testbed.session.description import describe
from testbed.session.interrupt import interruptible
from testbed.session.judgement import certify, ways_of
from testbed.session.lock import machine
from testbed.session.preflight import check
from testbed.session.progress import Progress
from testbed.session.replay_flows import Flowed, fill
from testbed.session.session import Session
from testbed.traces import read
from testbed.units import Rate

FLOW_CONGESTION = "cubic"
"""Keeps a queue filled; bbr, where it is the default, lets it run dry for 200 ms every ten seconds."""
QUEUE_S, LEAST_QUEUE_PACKETS = 0.05, 20
"""A queue shorter than so many packets cannot be kept filled: slow traces have that."""
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
REPORTED = ("link", "direction", "asked_bits", "delivered_bits", "ratio", "mape_step", "mape_1s",
            "worst_1s", "busy_share", "busy_ratio", "busy_mape_1s", "busy_worst_1s", "busy_mape_step",
            "excess_share", "lateness_ms")  # fmt: skip
"""What ``--json`` prints of a link direction."""


@dataclass(frozen=True)
class Replayed:
    """How the links followed their histories."""

    directory: Path
    verdict: Verdict
    report: LinkReport
    not_replayed: list[str]
    """What the scenario also asks for, and only a run does."""

    def to_json(self) -> dict[str, Any]:
        """``{"verdict", "reasons": [...], "measures": {...}, "not_replayed": [...], "links": [...]}``."""
        links = [asdict(end) for end in self.report.links]
        return {
            **self.verdict.to_json(),
            "not_replayed": self.not_replayed,
            "links": [{key: link[key] for key in REPORTED} for link in links],
        }


def trace_scenario(path: Path, form: str | None = None, column: str | None = None) -> Loaded:
    """A server and a worker whose links follow the trace at ``path`` in both directions, again and again.

    ``form`` and ``column`` as ``read`` takes them. Raises InputError for a trace that cannot be read or followed.
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
) -> Replayed:
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
    return Replayed(directory.path, verdict, flowed.report, left_out)


def not_replayed(scenario: Scenario) -> list[str]:
    """What a scenario asks for besides links, in its own words: bulk traffic takes the place of all of it."""
    kinds = dict.fromkeys(event.kind for event in scenario.events if isinstance(event, NodeEvent))
    return [*(["traffic"] if scenario.traffic else []), *kinds]


def _conclude(
    directory: RunDirectory,
    loaded: Loaded,
    held: Mapping[str, Any],
    flowed: Flowed,
    wall_s: float,
    dropped: int,
) -> Verdict:
    """Find the verdict; write certificate and summary."""
    history = LinkHistory(read_jsonl(directory.path / LINKS), rates=False)
    under_way = Spans([(0.0, wall_s)])
    links = flowed.report.to_json()["links"]
    asked = Asked.of(loaded.timeline(), max((link["to_s"] for link in links), default=0.0))
    evidence: Evidence = gather(
        links,
        history,
        asked,
        seconds=wall_s,
        processors=os.cpu_count() or 1,
        under_way=under_way,
        held=held["links"],
        trips=flowed.trips,
        ways=ways_of(
            loaded.wall(), Asked(loaded.timeline().initial, ())
        ),  # trips are timed before t0
    )
    evidence = replace(evidence, foreign_drops={"the host's receive backlog": dropped})
    left_out = not_replayed(loaded.scenario)
    verdict = certify(
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
