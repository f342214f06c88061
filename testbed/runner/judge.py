"""From a trial's records to its verdict, its certificate and its summary, and whether nodes'
counts agree.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.exchange.base import exchanges
from testbed.fidelity.completion import ExclusionRule, exclusion_rules, measure_groups
from testbed.fidelity.evidence import Evidence, Trip, gather, unattributed_bytes
from testbed.fidelity.reference import PathModel, RequestedLinks
from testbed.fidelity.run_checks import nodes_seen
from testbed.fidelity.service_curve import Bits, MessageGroup, followed, groups
from testbed.fidelity.summary import Events, entry, lost_reasons, lost_workers, summarise
from testbed.fidelity.verdict import CERTIFICATE, Verdict, certificate, disturbed, judge
from testbed.records.intervals import IntervalSet
from testbed.records.link_log import LinkLog
from testbed.records.manifest import THRESHOLDS
from testbed.records.run_directory import (
    LINKS,
    MANIFEST,
    RunDirectory,
    read_events,
    read_json,
    read_jsonl,
)
from testbed.records.stored import Records as StoredRecords
from testbed.scenario.expand import racks
from testbed.scenario.link_state import SEGMENT_BYTES
from testbed.scenario.model import Scenario
from testbed.scenario.node_timeline import flows, node_changes
from testbed.transport.multicast.packet import HEADERS_ON_LINK

if TYPE_CHECKING:
    from testbed.runner.trial import Trial


_REFUSED = 0.005
"""Share of its bytes, in whole segments, that a node's own queue may have refused at first."""

Messages = Mapping[str, Mapping[str, Any]]
"""Every node's ``done`` message by its name: ``{"summary", "counters", "multicast",
"strangers"}``."""
Records = Iterable[Mapping[str, Any]]


def faults(
    done: Messages,
    steps: Records,
    epochs: Records,
    recorded: Collection[str] | None = None,
    *,
    lost: bool = False,
) -> list[str]:
    """Everything that does not agree; nothing, in a sound run that came to its end.

    ``recorded``: the workers whose steps are recorded; None: all. ``lost``: a worker was lost, and
    what was under way between it and a server with it: the server's frames are not counted.
    """
    workers = [node for node, message in done.items() if message["summary"]["role"] == "worker"]
    return [
        *_replicas([*epochs, *(_final(node, message) for node, message in done.items())]),
        *_missing(done, steps, workers if recorded is None else recorded),
        *_bypassed(done),
        *_frames({node: said for node, said in done.items() if not (lost and _serves(said))}),
    ]


def _serves(message: Mapping[str, Any]) -> bool:
    return bool(message["summary"]["role"] == "server")


def _final(node: str, message: Mapping[str, Any]) -> dict[str, Any]:
    summary = message["summary"]
    return {"node": node, "step": summary["steps"], "parameters": summary["parameters"]}


def _replicas(hashed: Records) -> Iterator[str]:
    """A sentence for every step at whose end some nodes' parameters had another hash than
    others'."""
    hashes: dict[int, dict[str, set[str]]] = {}
    for record in hashed:
        if record["parameters"] is None:
            continue  # one of several servers: it has no replica
        nodes = hashes.setdefault(record["step"], {}).setdefault(record["parameters"], set())
        nodes.add(record["node"])
    for step, by_hash in sorted(hashes.items()):
        if len(by_hash) > 1:
            sides = " against ".join(", ".join(sorted(nodes)) for nodes in by_hash.values())
            yield f"after step {step} the replicas differed: {sides}"


def _missing(done: Messages, steps: Records, workers: Iterable[str]) -> Iterator[str]:
    recorded = Counter(step["node"] for step in steps)
    for node in workers:
        summary, kept = done[node]["summary"], recorded[node]
        made = summary.get("made", summary["steps"])
        if kept != made:
            yield f"{node} made {made} steps, but {kept} are in the records"


def _bypassed(done: Messages) -> Iterator[str]:
    """Yield a sentence for each direction in which a node's interface carried less than its library
    moved."""
    for node, message in done.items():
        if (seen := message.get("interface")) is None:
            continue
        for way, name in (("sent", "bytes_up"), ("received", "bytes_down")):
            least = message["summary"][name]
            if seen[way] < least:
                yield (
                    f"the interface {seen['interface']} of {node} {way} {seen[way]} B, but "
                    f"gradients alone are {least} B: they went another way"
                )


def _frames(done: Messages) -> Iterator[str]:
    """The application's own bytes are the frames it counted, HELLO and BYE among them, and those of
    its endpoint."""
    for node, message in done.items():
        sockets = message["counters"].values()
        sent = sum(s["bytes_sent"] - s["bytes_retransmitted"] for s in sockets)
        received = sum(s["bytes_received"] for s in sockets)
        if multicast := message.get("multicast"):
            sent += multicast["frame_bytes_sent"]
            received += multicast["frame_bytes_received"]
        counted = message["summary"]
        excuses_out, excuses_in = message.get("excuses", (0, 0))
        sent, received = sent - excuses_out, received - excuses_in
        # The kernel counts the end of a stream as a byte, and a peer may have ended its own
        # already.
        ends = received - counted["bytes_received"]
        # What its own queue refuses the kernel counts as sent, and again when it goes (to the byte
        # right: the peers' counts).
        again = sent - counted["bytes_sent"]
        alike = 0 <= again <= _REFUSED * counted["bytes_sent"] and again % SEGMENT_BYTES == 0
        if not alike or not 0 <= ends <= len(sockets):
            yield (
                f"{node} counted frames of {counted['bytes_sent']} B out and "
                f"{counted['bytes_received']} B in, its sockets {sent} B and {received} B"
            )


EVIDENCE = "evidence.json"
"""Evidence for a verdict besides the records: the links' report, the kernel's count of every
socket."""


@dataclass(frozen=True)
class MessageActivity:
    """A run's messages as its records have them, for its verdict. Times in wall seconds after
    t0."""

    under_way: IntervalSet
    """When there were messages under way."""
    seconds: float
    """When the last node had ended."""
    groups: Iterable[MessageGroup]
    """Those to be held against the service curve."""
    steps: StoredRecords = ()
    rounds: StoredRecords = ()
    entangled: int = 0
    """Groups of messages for which there is no service curve: they share links with others that go
    elsewhere."""


Look = Callable[[Events, Mapping[int, str], bool], MessageActivity]
"""Events by kind, names by peer number, and whether all of a step's gradients are in its mean."""
Sum = Callable[[Path, Verdict], dict[str, Any]]


def write_verdict(
    trial: Trial, look: Look | None = None, summed_up: Sum = summarise
) -> dict[str, Any]:
    """Find the verdict, write ``certificate.json`` and ``summary.json``, return the run's entry.

    ``look``: how its messages are found in its records; those of training, if not said.
    """
    path = trial.directory.path
    summary = summed_up(path, _verdict(trial, path, look or training_activity))
    trial.directory.write_json("summary.json", summary)
    return entry(summary)


def ways_of(scenario: Scenario, asked: RequestedLinks) -> PathModel:
    """The ways between the nodes of a scenario."""
    return PathModel(asked, {node: rack.name for rack in racks(scenario) for node in rack.members})


def write_certificate(
    directory: RunDirectory,
    evidence: Evidence,
    history: LinkLog,
    under_way: IntervalSet,
    dilation: float,
    verdict: Verdict | None = None,
    not_replayed: Sequence[str] = (),
) -> Verdict:
    """Judge by ``evidence`` (unless the verdict is known), and write ``certificate.json`` and the
    disturbed times.

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


def training_activity(events: Events, names: Mapping[int, str], lockstep: bool) -> MessageActivity:
    """Rounds with servers, and gradients that no mean waits for, which alone say nothing of a
    link."""
    steps = events.get("step", [])
    every = groups(*followed(events), names, apart=True)
    spans = ((group.start_s, group.last_s) for group in every)
    alone = ((float(g["sent_s"]), float(g["arrived_s"])) for g in events.get("gradient", []))
    return MessageActivity(
        under_way=IntervalSet(chain(spans, alone)),
        seconds=max((float(step["end_s"]) for step in steps), default=0.0),
        groups=groups(*followed(events), names) if lockstep else (),
        steps=steps,
        rounds=events.get("round", []) if lockstep else [],
    )


def _verdict(trial: Trial, path: Path, look: Look) -> Verdict:
    outcome, dilation = trial.outcome, trial.experiment.dilation
    history = LinkLog(read_jsonl(path / LINKS), rates=False)
    if outcome.error is not None:
        cut_short = Verdict.of_failure(outcome.error)
        return write_certificate(
            trial.directory, Evidence(), history, IntervalSet(), dilation, cut_short
        )
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
    return write_certificate(trial.directory, evidence, history, seen.under_way, dilation, verdict)


def _evidence(
    trial: Trial,
    path: Path,
    events: Events,
    history: LinkLog,
    seen: MessageActivity,
) -> Evidence:
    scenario, outcome = trial.experiment.scenario, trial.outcome
    links = [] if outcome.links is None else outcome.links.to_json()["links"]
    until_s = max((float(link["to_s"]) for link in links), default=0.0)
    timeline = trial.experiment.timeline
    asked = RequestedLinks.of(timeline, until_s)
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
    crossed = unattributed_bytes(asked, outcome.crossed, _with_groups(outcome.done))
    happening = node_changes(scenario)
    servers = sum(spec.role == "server" for spec in trial.experiment.specs)
    returns = IntervalSet(
        (float(a["asked_s"]), float(a["arrived_s"])) for a in events.get("away", [])
    )
    crossing = flows(scenario)
    why_not = exclusion_rules(
        history, ways, crossing, happening, until_s, THRESHOLDS, servers, returns
    )
    return replace(
        found,
        steps=seen.steps,
        rests=events.get("rest", []),
        rounds=seen.rounds,
        nodes=nodes_seen(happening, history.nodes, seen.seconds),
        sockets=_sockets(outcome.done),
        unattributed={**_uncounted(lost_workers(events), trial), **crossed},
        completion=_completion(seen, timeline.bits, why_not, ways),
        foreign_drops={"the host's receive backlog": outcome.backlog_drops},
        faults=faults(
            outcome.done, seen.steps, events.get("epoch", []), lost=bool(lost_workers(events))
        ),
    )


def _completion(
    seen: MessageActivity, bits: Bits, why_not: Mapping[str, ExclusionRule], ways: PathModel
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
    """Return why counts are missing, keyed by place: a lost worker's sockets, and their counts, are
    gone with it."""
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
    """Yield what nodes multicast: on their own links once, and on the link of each member."""
    for node, message in done.items():
        if counted := message.get("multicast"):
            common = {"by": node, "header_bytes": HEADERS_ON_LINK}
            sent = counted["sent"]
            yield {**_counted(node, None, sent["bytes"], sent["packets"]), **common}
            for peer, came in counted["to"].items():
                yield {**_counted(None, peer, came["bytes"], came["packets"]), **common}


def _counted(node: str | None, peer: str | None, octets: int, packets: int) -> dict[str, Any]:
    return {"node": node, "peer": peer, "bytes_sent": octets, "segs_out": packets}
