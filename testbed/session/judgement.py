"""From a trial's records to its verdict, its certificate and its summary."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.exchange.kinds import exchanges
from testbed.exchange.multicast.packet import HEADERS_ON_LINK
from testbed.record.asked import Asked
from testbed.record.certificate import CERTIFICATE, certificate
from testbed.record.completion import Excuse, measure_groups
from testbed.record.directory import (
    LINKS,
    MANIFEST,
    RunDirectory,
    read_events,
    read_json,
    read_jsonl,
)
from testbed.record.disturbed import disturbed
from testbed.record.excuses import excuses
from testbed.record.fluid import Bits
from testbed.record.gather import Trip, gather, unaccounted
from testbed.record.groups import Group, followed, groups
from testbed.record.history import LinkHistory
from testbed.record.lost import Events, lost_reasons, lost_workers
from testbed.record.node_events import nodes_seen
from testbed.record.spans import Spans
from testbed.record.stored import Records
from testbed.record.summary import entry, summarise
from testbed.record.verdict import THRESHOLDS, Evidence, Verdict, judge
from testbed.record.ways import Ways
from testbed.scenario.expand import racks
from testbed.scenario.model import Scenario
from testbed.scenario.node_events import node_changes
from testbed.scenario.traffic import flows
from testbed.session.consistency import faults

if TYPE_CHECKING:
    from testbed.session.trial import Trial


EVIDENCE = "evidence.json"
"""What a verdict was found on besides the records: the links' report, the kernel's count of every socket."""


@dataclass(frozen=True)
class Seen:
    """What records say of a run's messages, for its verdict. Times in wall seconds after t0."""

    under_way: Spans
    """When there were messages under way."""
    seconds: float
    """When the last node had ended."""
    groups: Iterable[Group]
    """Those to be held against the service curve."""
    steps: Records = ()
    rounds: Records = ()
    entangled: int = 0
    """Groups of messages for which there is no service curve: they share links with others that go elsewhere."""


Look = Callable[[Events, Mapping[int, str], bool], Seen]
"""Events by kind, names by peer number, and whether all of a step's gradients are in its mean."""
Sum = Callable[[Path, Verdict], dict[str, Any]]


def conclude(trial: Trial, look: Look | None = None, summed_up: Sum = summarise) -> dict[str, Any]:
    """Find the verdict, write ``certificate.json`` and ``summary.json``, return the run's entry.

    ``look``: how its messages are found in its records; those of training, if not said.
    """
    path = trial.directory.path
    summary = summed_up(path, _verdict(trial, path, look or of_training))
    trial.directory.write_json("summary.json", summary)
    return entry(summary)


def ways_of(scenario: Scenario, asked: Asked) -> Ways:
    """The ways between the nodes of a scenario."""
    return Ways(asked, {node: rack.name for rack in racks(scenario) for node in rack.members})


def certify(
    directory: RunDirectory,
    evidence: Evidence,
    history: LinkHistory,
    under_way: Spans,
    dilation: float,
    verdict: Verdict | None = None,
    not_replayed: Sequence[str] = (),
) -> Verdict:
    """Judge by ``evidence`` (unless the verdict is known), and write ``certificate.json`` and the disturbed times.

    ``not_replayed``: what the scenario asks for and a replay leaves out.
    """
    verdict = verdict or judge(evidence)
    times = disturbed(history, under_way, THRESHOLDS)
    directory.link([span.to_json() for span in times])
    made = certificate(
        evidence,
        verdict,
        history.host,
        times,
        dilation=dilation,
        processors=os.cpu_count() or 1,
        not_replayed=not_replayed,
    )
    directory.write_json(CERTIFICATE, made)
    return verdict


def of_training(events: Events, names: Mapping[int, str], lockstep: bool) -> Seen:
    """Rounds with servers, and gradients that no mean waits for, which alone say nothing of a link."""
    steps = events.get("step", [])
    every = groups(*followed(events), names, apart=True)
    spans = ((group.start_s, group.last_s) for group in every)
    alone = ((float(g["sent_s"]), float(g["arrived_s"])) for g in events.get("gradient", []))
    return Seen(
        under_way=Spans(chain(spans, alone)),
        seconds=max((float(step["end_s"]) for step in steps), default=0.0),
        groups=groups(*followed(events), names) if lockstep else (),
        steps=steps,
        rounds=events.get("round", []) if lockstep else [],
    )


def _verdict(trial: Trial, path: Path, look: Look) -> Verdict:
    outcome, dilation = trial.outcome, trial.experiment.dilation
    history = LinkHistory(read_jsonl(path / LINKS), rates=False)
    if outcome.error is not None:
        cut_short = Verdict.of_failure(outcome.error)
        return certify(trial.directory, Evidence(), history, Spans(), dilation, cut_short)
    events = read_events(path)
    names = {spec.peer: spec.name for spec in trial.session.specs}
    seen = look(events, names, exchanges.get(trial.algorithm.exchange).lockstep)
    evidence = _evidence(trial, path, events, history, seen)
    trial.directory.write_json(
        EVIDENCE,
        {
            "links": evidence.links,
            "sockets": evidence.sockets,
            "nodes": outcome.done,
            "strangers": trial.session.switchboard.strangers,
        },
    )
    verdict = judge(evidence)
    verdict = replace(verdict, reasons=[*verdict.reasons, *lost_reasons(events)])
    return certify(trial.directory, evidence, history, seen.under_way, dilation, verdict)


def _evidence(
    trial: Trial,
    path: Path,
    events: Events,
    history: LinkHistory,
    seen: Seen,
) -> Evidence:
    scenario, outcome = trial.experiment.scenario, trial.outcome
    links = [] if outcome.links is None else outcome.links.to_json()["links"]
    until_s = max((float(link["to_s"]) for link in links), default=0.0)
    timeline = trial.experiment.timeline
    asked = Asked.of(timeline, until_s)
    ways = ways_of(scenario, asked)
    found = gather(
        links,
        history,
        asked,
        seconds=seen.seconds,
        processors=os.cpu_count() or 1,
        under_way=seen.under_way,
        held=read_json(path / MANIFEST)["links"],
        trips=list(_trips(outcome.done)),
        ways=ways,
    )
    crossed = unaccounted(asked, outcome.crossed, _with_groups(outcome.done))
    happening = node_changes(scenario)
    servers = sum(spec.role == "server" for spec in trial.experiment.specs)
    returns = Spans((float(a["asked_s"]), float(a["arrived_s"])) for a in events.get("away", []))
    crossing = flows(scenario)
    why_not = excuses(history, ways, crossing, happening, until_s, THRESHOLDS, servers, returns)
    return replace(
        found,
        steps=seen.steps,
        rests=events.get("rest", []),
        rounds=seen.rounds,
        nodes=nodes_seen(happening, history.nodes, seen.seconds),
        sockets=_sockets(outcome.done),
        unaccounted={**_uncounted(lost_workers(events), trial), **crossed},
        completion=_completion(seen, timeline.bits, why_not, ways),
        foreign_drops={"the host's receive backlog": outcome.backlog_drops},
        faults=faults(
            outcome.done, seen.steps, events.get("epoch", []), lost=bool(lost_workers(events))
        ),
    )


def _completion(
    seen: Seen, bits: Bits, why_not: Mapping[str, Excuse], ways: Ways
) -> dict[str, Any]:
    found = measure_groups(seen.groups, bits, why_not, ways.delay_s, ways.overhead)
    if seen.entangled:
        found["groups"] += seen.entangled
        found["not_judged"]["entangled"] = seen.entangled
    return found


def _with_groups(done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The nodes that exchanged gradients by a process group."""
    return [node for node, message in done.items() if message.get("interface") is not None]


def _uncounted(lost: Sequence[str], trial: Trial) -> dict[str, str]:
    """By place: what a lost worker's sockets had counted is lost with it."""
    servers = [spec.name for spec in trial.experiment.specs if spec.role == "server"]
    racks_of = [rack.name for rack in racks(trial.experiment.scenario)]
    return {
        f"{link} {direction}": f"{', '.join(lost)} was lost, and the counts of its sockets"
        for link in ([*lost, *servers, *racks_of] if lost else [])
        for direction in ("up", "down")
    }


def _trips(done: Mapping[str, Mapping[str, Any]]) -> Iterator[Trip]:
    """The least round-trip times that the nodes' sockets saw."""
    for node, message in done.items():
        for peer, counted in message["counters"].items():
            if counted.get("least_rtt_us") is not None:
                yield node, peer, counted["least_rtt_us"] / 1e6


def _sockets(done: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Socket counters by the names of both ends, out of the nodes' last messages."""
    connections = [
        _counted(node, peer, counted["bytes_sent"], counted["segments_out"])
        for node, message in done.items()
        for peer, counted in message["counters"].items()
    ]
    return [*connections, *_multicasts(done)]


def _multicasts(done: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What nodes multicast: on their own links once, and on the link of each member."""
    for node, message in done.items():
        if counted := message.get("multicast"):
            common = {"by": node, "header_bytes": HEADERS_ON_LINK}
            sent = counted["sent"]
            yield {**_counted(node, None, sent["bytes"], sent["packets"]), **common}
            for peer, came in counted["to"].items():
                yield {**_counted(None, peer, came["bytes"], came["packets"]), **common}


def _counted(node: str | None, peer: str | None, octets: int, packets: int) -> dict[str, Any]:
    return {"node": node, "peer": peer, "bytes_sent": octets, "segs_out": packets}
