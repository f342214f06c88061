"""From a trial's records to its verdict, its certificate and its summary, and whether nodes'
counts, and the hashes of their replicas, agree.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import gcd
from pathlib import Path
from typing import Any

from testbed.errors import ExperimentError, NarrowsError
from testbed.exchange.base import exchanges
from testbed.fidelity.completion import ExclusionRule, exclusion_rules, measure_groups
from testbed.fidelity.evidence import Evidence, Trip, gather, unattributed_bytes
from testbed.fidelity.reference import PathModel, RequestedLinks
from testbed.fidelity.run_checks import nodes_seen
from testbed.fidelity.service_curve import Bits, MessageGroup, followed, groups
from testbed.fidelity.summary import entry, lost_reasons, lost_workers, summarise
from testbed.fidelity.verdict import CERTIFICATE, Verdict, certificate, disturbed, judge
from testbed.records.intervals import IntervalSet
from testbed.records.link_log import LinkLog
from testbed.records.manifest import THRESHOLDS
from testbed.records.run_directory import (
    LINKS,
    MANIFEST,
    SUMMARY,
    in_short,
    read_events,
    read_json,
    read_jsonl,
)
from testbed.records.stored import Events, Records
from testbed.runner.experiment import Experiment
from testbed.runner.trial import TrialOutcome, TrialPlan
from testbed.scenario.expand import racks
from testbed.scenario.link_state import SEGMENT_BYTES
from testbed.scenario.model import Scenario
from testbed.scenario.node_timeline import flows, node_changes
from testbed.transport.multicast.packet import HEADERS_ON_LINK

_REFUSED = 0.005
"""Share of its bytes, in whole segments, that a node's own queue may have refused at first without
having counted drops."""

Messages = Mapping[str, Mapping[str, Any]]
"""Nodes' ``done`` messages by name: ``{"summary", "counters", "multicast", "strangers"}``."""


def faults(
    done: Messages,
    steps: Records,
    epochs: Records,
    recorded: Collection[str] | None = None,
    *,
    lost: bool = False,
    links: Records = (),
) -> list[str]:
    """Everything that does not agree; nothing, in a sound run that came to its end.

    ``recorded``: the workers whose steps are recorded; None: all. ``lost``: a worker was lost, and
    what was under way between it and a server with it: the server's frames are not counted.
    ``links``: their reports, with the packets that a node's own queue dropped.
    """
    workers = [node for node, message in done.items() if message["summary"]["role"] == "worker"]
    return [
        *_replicas([*epochs, *(_final(node, message) for node, message in done.items())]),
        *_missing(done, steps, workers if recorded is None else recorded),
        *_bypassed(done),
        *_frames(
            {node: last for node, last in done.items() if not (lost and _serves(last))},
            _refused_segments(links),
        ),
    ]


def _refused_segments(links: Records) -> dict[str, int]:
    """Return the most segments that each node's own queue has refused, a bundle for each drop."""
    return {
        link["link"]: int(link.get("drops") or 0) * int(link.get("gso_max_segs") or 1)
        for link in links
        if link["direction"] == "up"
    }


def _serves(message: Mapping[str, Any]) -> bool:
    return bool(message["summary"]["role"] == "server")


def _final(node: str, message: Mapping[str, Any]) -> dict[str, Any]:
    summary = message["summary"]
    return {"node": node, "step": summary["steps"], "parameters": summary["parameters"]}


def _replicas(hashed: Records) -> Iterator[str]:
    """A sentence for every step at whose end nodes' parameters had different hashes."""
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
        steps_made = summary.get("made", summary["steps"])
        if kept != steps_made:
            yield f"{node} made {steps_made} steps, but {kept} are in the records"


def _bypassed(done: Messages) -> Iterator[str]:
    """Yield a sentence where an interface carried less than the node's library moved."""
    for node, message in done.items():
        if (carried := message.get("interface")) is None:
            continue
        for verb, name in (("sent", "bytes_up"), ("received", "bytes_down")):
            least = message["summary"][name]
            if carried[verb] < least:
                yield (
                    f"the interface {carried['interface']} of {node} {verb} {carried[verb]} B, but "
                    f"gradients alone are {least} B: they went another way"
                )


def _frames(done: Messages, refused: Mapping[str, int]) -> Iterator[str]:
    """Socket bytes must be the frames counted, HELLO, BYE and the endpoint's own included.

    ``refused``: segments, by node.
    """
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
        # What its own queue refuses the kernel counts as sent, and again when it goes: more was
        # sent than counted. Whether all of it came, the counts of its peers say.
        again = sent - counted["bytes_sent"]
        segments = _segment_bytes([message])
        whole = again % gcd(*segments) == 0 and again <= _REFUSED * counted["bytes_sent"]
        dropped = again <= refused.get(node, 0) * max(segments)
        alike = again >= 0 and (whole or dropped)
        if not alike or not 0 <= ends <= len(sockets):
            yield (
                f"{node} counted frames of {counted['bytes_sent']} B out and "
                f"{counted['bytes_received']} B in, its sockets {sent} B and {received} B"
            )


def _segment_bytes(done: Iterable[Mapping[str, Any]]) -> set[int]:
    """Payloads of a full segment between nodes, as their sockets say: the network's MTU decides.

    ``done``: nodes' last messages. Where there are no sockets: 1448.
    """
    sockets = chain.from_iterable(message["counters"].values() for message in done)
    return {int(socket["segment_bytes"]) for socket in sockets} or {SEGMENT_BYTES}


EVIDENCE = "evidence.json"
"""Evidence besides the records: the links' report, the kernel's counts of sockets."""


@dataclass(frozen=True)
class MessageActivity:
    """A run's messages from its records, for its verdict. Wall seconds after t0."""

    under_way: IntervalSet
    """When there were messages under way."""
    seconds: float
    """When the last node had ended."""
    groups: Iterable[MessageGroup]
    """Those to be held against the service curve."""
    steps: Records = ()
    rounds: Records = ()
    entangled: int = 0
    """Groups without a service curve: they share links with messages that go elsewhere."""


Look = Callable[[Events, Mapping[int, str], bool], MessageActivity]
"""Events by kind, names by peer number, and whether all of a step's gradients are in its mean."""
Sum = Callable[[Path, Verdict], dict[str, Any]]


def write_verdict(
    plan: TrialPlan, outcome: TrialOutcome, look: Look | None = None, summed_up: Sum = summarise
) -> dict[str, Any]:
    """Find the verdict, write evidence, certificate and summary, return the run's entry.

    ``look``: how its messages are found in its records; those of training, if not said. Raises
    ExperimentError where nodes have said what cannot be judged.
    """
    try:
        verdict = _verdict(plan, outcome, look or training_activity)
        summary = summed_up(plan.directory.path, verdict)
    except (NarrowsError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ExperimentError(
            f"no verdict can be found in what the nodes said ({in_short(error)}); the records are "
            "kept"
        ) from error
    plan.directory.write_json(SUMMARY, summary)
    return entry(summary)


def path_model(scenario: Scenario, requested: RequestedLinks) -> PathModel:
    """The paths between the nodes of a scenario."""
    members = {node: rack.name for rack in racks(scenario) for node in rack.members}
    return PathModel(requested, members)


def write_certificate(
    plan: TrialPlan,
    evidence: Evidence,
    history: LinkLog,
    under_way: IntervalSet,
    verdict: Verdict | None = None,
    not_replayed: Sequence[str] = (),
) -> Verdict:
    """Judge by ``evidence`` (unless the verdict is known), and write ``certificate.json`` and the
    disturbed times.

    ``not_replayed``: what the scenario asks for and a replay leaves out.
    """
    verdict = verdict or judge(evidence)
    times = disturbed(history, under_way, THRESHOLDS)
    plan.directory.link([span.to_json() for span in times])
    content = certificate(
        evidence,
        verdict,
        history.host,
        times,
        dilation=plan.experiment.dilation,
        processors=os.cpu_count() or 1,
        not_replayed=not_replayed,
        hosts=_hosts(plan, history),
    )
    plan.directory.write_json(CERTIFICATE, content)
    return verdict


def _hosts(plan: TrialPlan, history: LinkLog) -> list[dict[str, Any]]:
    """A swarm's hosts: the real network under the emulated links, and how far clocks moved."""
    path = plan.directory.path / MANIFEST
    manifest = read_json(path) if path.exists() else {}
    return [
        {
            **{key: host[key] for key in ("name", "nodes", "underlay", "emulated_share")},
            "clock": dict(zip(("moved_ns", "error_ns"), history.clocks[host["name"]], strict=True))
            if host["name"] in history.clocks
            else None,
        }
        for host in manifest.get("hosts", ())
    ]


def write_failure(plan: TrialPlan, history: LinkLog, error: BaseException) -> Verdict:
    """Write the certificate of a trial that ``error`` ended before its time."""
    verdict = Verdict.of_failure(error)
    return write_certificate(plan, Evidence(), history, IntervalSet(), verdict)


def requested_links(plan: TrialPlan, outcome: TrialOutcome) -> RequestedLinks:
    """Return what was requested of the links up to the last look at them."""
    return RequestedLinks.of(plan.experiment.timeline, outcome.until_s)


def link_evidence(
    outcome: TrialOutcome,
    history: LinkLog,
    requested: RequestedLinks,
    paths: PathModel,
    *,
    seconds: float,
    under_way: IntervalSet,
    trips: Iterable[Trip],
) -> Evidence:
    """Gather what links and host did, which every kind of trial is judged by."""
    evidence = gather(
        outcome.link_reports,
        history,
        requested,
        seconds=seconds,
        processors=os.cpu_count() or 1,
        under_way=under_way,
        initial=outcome.shaped,
        trips=list(trips),
        ways=paths,
    )
    return replace(evidence, foreign_drops={"the host's receive backlog": outcome.backlog_drops})


def training_activity(events: Events, names: Mapping[int, str], lockstep: bool) -> MessageActivity:
    """Rounds with servers, and gradients that no mean waits for."""
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


def _verdict(plan: TrialPlan, outcome: TrialOutcome, look: Look) -> Verdict:
    path = plan.directory.path
    history = LinkLog(read_jsonl(path / LINKS), rates=False)
    if outcome.error is not None:
        return write_failure(plan, history, outcome.error)
    events = read_events(path)
    names = {spec.peer: spec.name for spec in plan.experiment.specs}
    activity = look(events, names, exchanges.get(plan.algorithm.exchange).lockstep)
    evidence = _evidence(plan, outcome, events, history, activity)
    plan.directory.write_json(
        EVIDENCE,
        {
            "links": evidence.links,
            "sockets": evidence.sockets,
            "nodes": outcome.done,
            "strangers": outcome.strangers,
        },
    )
    verdict = judge(evidence)
    verdict = replace(verdict, reasons=[*verdict.reasons, *lost_reasons(events)])
    return write_certificate(plan, evidence, history, activity.under_way, verdict)


def _evidence(
    plan: TrialPlan,
    outcome: TrialOutcome,
    events: Events,
    history: LinkLog,
    activity: MessageActivity,
) -> Evidence:
    experiment, scenario, done = plan.experiment, plan.experiment.scenario, outcome.done
    requested = requested_links(plan, outcome)
    paths, changes = path_model(scenario, requested), node_changes(scenario)
    servers = sum(spec.role == "server" for spec in experiment.specs)
    returns = IntervalSet(
        (float(a["asked_s"]), float(a["arrived_s"])) for a in events.get("away", [])
    )
    rules = exclusion_rules(
        history, paths, flows(scenario), changes, outcome.until_s, THRESHOLDS, servers, returns
    )
    lost = lost_workers(events)
    crossed = unattributed_bytes(requested, outcome.crossed, _with_groups(done))
    evidence = link_evidence(
        outcome,
        history,
        requested,
        paths,
        seconds=activity.seconds,
        under_way=activity.under_way,
        trips=_trips(done),
    )
    return replace(
        evidence,
        steps=activity.steps,
        rests=events.get("rest", []),
        rounds=activity.rounds,
        nodes=nodes_seen(changes, history.nodes, activity.seconds),
        sockets=_sockets(done),
        unattributed={**_uncounted(lost, experiment), **crossed},
        completion=_completion(
            activity, experiment.timeline.bits, rules, paths, min(_segment_bytes(done.values()))
        ),
        faults=faults(
            done,
            activity.steps,
            events.get("epoch", []),
            lost=bool(lost),
            links=evidence.links,
        ),
    )


def _completion(
    activity: MessageActivity,
    bits: Bits,
    rules: Mapping[str, ExclusionRule],
    paths: PathModel,
    segment: int,
) -> dict[str, Any]:
    measured = measure_groups(
        activity.groups, bits, rules, paths.delay_s, paths.overhead, segment_bytes=segment
    )
    if activity.entangled:
        measured["groups"] += activity.entangled
        measured["not_judged"]["entangled"] = activity.entangled
    return measured


def _with_groups(done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The nodes that exchanged gradients by a process group."""
    return [node for node, message in done.items() if message.get("interface") is not None]


def _uncounted(lost: Sequence[str], experiment: Experiment) -> dict[str, str]:
    """Return why counts are missing, by link direction: a lost worker's are gone with it."""
    servers = [spec.name for spec in experiment.specs if spec.role == "server"]
    racks_of = [rack.name for rack in racks(experiment.scenario)]
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
