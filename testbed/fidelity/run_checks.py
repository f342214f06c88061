"""Checks of a run: processor time, byte identity (the kernel's class, sockets and frames must
agree), node events, and messages' completion. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.fidelity.evidence import CheckResult, Evidence, NodesSeen
from testbed.fidelity.evidence import Records as EvidenceRecords
from testbed.records.intervals import spread
from testbed.records.manifest import Thresholds
from testbed.records.stored import Joined
from testbed.scenario.link_state import FRAME_BYTES, SEGMENT_HEADER_BYTES
from testbed.scenario.node_timeline import NodeChange

Records = Sequence[Mapping[str, Any]]
_Counts = tuple[int, int, int]
"""Bytes up, bytes down, and workers."""


def class_bytes_expected(links: Records, sockets: Records) -> dict[str, tuple[int, float, float]]:
    """Per link direction ``(bytes at its class, least, most that the sockets account for)``.

    Up carries what the node's sockets sent, down what its peers' sockets sent to it. A packet
    dropped on the way was sent but never counted at the class: it takes away at least a bare header
    and at most a full bundle (``gso_max_segs`` frames; 1 if the report does not say). What a rack's
    link loses may be missing at any node's down link. Links that no socket names are left out.

    A multicast is one copy on its sender's link and one on each member's: records of it name one
    side only, and ``by`` whom it was sent; their datagrams have ``header_bytes``.
    """
    if not sockets:
        return {}
    result = {}
    nodes = {str(socket[side]) for socket in sockets for side in ("node", "peer") if socket[side]}
    bare = min(_header(socket) for socket in sockets)
    for link in links:
        node, direction = link["link"], link["direction"]
        if node not in nodes:
            continue  # a rack's link: no socket is its own
        side = "node" if direction == "up" else "peer"
        mine = [socket for socket in sockets if socket[side] == node]
        senders = {str(socket.get("by", socket["node"])) for socket in mine}
        sent = sum(s["bytes_sent"] + _header(s) * s["segs_out"] for s in mine)
        least = most = 0
        for other in links:
            own = other["link"] == node and other["direction"] == direction
            before = direction == "down" and (
                other["link"] not in nodes
                or (other["direction"] == "up" and other["link"] in senders)
            )
            if own or before:
                drops = int(other.get("drops") or 0)
                lost = int(other.get("line_lost") or 0) + int(other.get("line_limit") or 0)
                most += (drops + lost) * FRAME_BYTES * int(other.get("gso_max_segs") or 1)
                # A packet lost one hop earlier may have been meant for another node.
                least += drops * bare if own else 0
        result[f"{node} {direction}"] = (
            int(link["class_bytes"]),
            float(sent - most),
            float(sent - least),
        )
    return result


def _header(socket: Mapping[str, Any]) -> int:
    return int(socket.get("header_bytes", SEGMENT_HEADER_BYTES))


def frames_disagree(steps: Records, rounds: Records) -> list[str]:
    """A sentence for every finished round whose bytes differ between the workers and the servers.

    ``steps``: of workers that took part and of those that rested.
    """
    sent: dict[int, _Counts] = {}
    for step in steps:
        number = int(step["step"])
        up, down, workers = sent.get(number, (0, 0, 0))
        sent[number] = up + int(step["bytes_up"]), down + int(step["bytes_down"]), workers + 1
    seen: dict[int, tuple[int, int]] = {}
    for round_ in rounds:
        number, messages = int(round_["step"]), round_["messages"]
        if sent.get(number, (0, 0, 0))[2] != len(messages) + len(round_.get("others", [])):
            continue  # cut short: some worker never finished this step
        up, down = seen.get(number, (0, 0))
        up += sum(int(m["bytes"]) for m in messages)
        seen[number] = up, down + int(round_["bytes_down"])
    return [
        f"step {number}: the workers counted {sent[number][0]} B up and {sent[number][1]} B down, "
        f"the server {up} B and {down} B; not a byte may differ"
        for number, (up, down) in seen.items()
        if (up, down) != sent[number][:2]
    ]


STILL_S = 1.0
"""Seconds before the end of the run; a change that was due in them may be on its way."""
Made = Mapping[str, Any]


def nodes_seen(asked: Iterable[NodeChange], made: Iterable[Made], until_s: float) -> NodesSeen:
    """``made``: the ``node`` records of ``links.jsonl``; what was due after ``until_s`` is not
    expected."""
    left = {
        (record["node"], record["action"], round(float(record["due_s"]), 6)): record
        for record in made
    }
    found = _Found()
    for change in asked:
        key = change.node, change.action, round(change.time_s, 6)
        if (record := left.pop(key, None)) is not None:
            found.expected += 1
            found.late_ms.append(1e3 * (float(record["applied_s"]) - float(record["due_s"])))
        elif change.time_s <= until_s - STILL_S:
            found.expected += 1
            found.faults.append(
                f"{change.action} of {change.node}, due at {change.time_s:.3f} s, was never done"
            )
    found.faults += [
        f"{action} of {node} at {due_s:.3f} s: nobody asked for it" for node, action, due_s in left
    ]
    return NodesSeen(found.expected, len(found.late_ms), found.faults, spread(found.late_ms))


@dataclass(slots=True)
class _Found:
    expected: int = 0
    late_ms: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def node_findings(nodes: NodesSeen | None, limits: Thresholds) -> Iterator[CheckResult]:
    """``node_events``: all were done; ``node_lateness_ms``: the latest of them."""
    if nodes is None or not (nodes.expected or nodes.faults):
        yield CheckResult("node_events", "nothing was to happen to nodes")
        yield CheckResult("node_lateness_ms", "nothing was to happen to nodes")
        return
    said = nodes.faults[0] if nodes.faults else f"all {nodes.expected} events of nodes were done"
    more = f" (and {len(nodes.faults) - 1} more)" if len(nodes.faults) > 1 else ""
    yield CheckResult("node_events", f"{said}{more}", float(len(nodes.faults)))
    if (most := nodes.lateness_ms["max"]) is None:
        yield CheckResult("node_lateness_ms", "nothing was done to nodes")
        return
    yield CheckResult(
        "node_lateness_ms",
        f"an event of a node was done {most:.1f} ms late; at most {limits.node_lateness_ms:g} ms "
        "is right",
        most,
        limits.node_lateness_ms,
    )


def run_findings(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    """Yield the check results of the run as a whole, and of its host."""
    yield from node_findings(evidence.nodes, limits)
    yield from _consistency(evidence)
    yield from _around(evidence)
    yield from _drops(evidence, limits)
    yield from _stolen(evidence, limits)
    yield _starved(evidence, limits)
    yield from _processor(evidence, limits)
    yield from _completion(evidence, limits)
    yield from _identity(evidence, limits)


def _consistency(evidence: Evidence) -> Iterator[CheckResult]:
    for sentence in evidence.faults:
        yield CheckResult("consistency", sentence, 1.0)


def _around(evidence: Evidence) -> Iterator[CheckResult]:
    """Check for traffic around the links: bytes that a link did not carry say nothing of it,
    however little else is found."""
    if evidence.around is None:
        return
    if not (evidence.around or evidence.unwatched):
        yield CheckResult("around", "nothing went around the links", 0.0)
    for sentence in evidence.around:
        yield CheckResult("around", sentence, 1.0)
    for sentence in evidence.unwatched:
        yield CheckResult("around", sentence)


def _drops(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    if evidence.foreign_drops is None:
        yield CheckResult("foreign_drops", "drops outside the emulated queues were not counted")
        return
    for place, drops in evidence.foreign_drops.items():
        yield CheckResult(
            "foreign_drops",
            f"{drops} packets were dropped at {place}, outside the emulated queues; "
            f"at most {limits.foreign_drops} may be",
            float(drops),
            limits.foreign_drops,
            place,
        )


def _stolen(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    share = evidence.stolen_share
    if share is None:
        yield CheckResult("stolen_share", "processor time lost to other machines was not counted")
        return
    yield CheckResult(
        "stolen_share",
        f"{share:.1%} of this host's processor time was taken by others on the same hardware; "
        f"at most {limits.stolen_share:.1%} may be",
        share,
        limits.stolen_share,
    )


def _starved(evidence: Evidence, limits: Thresholds) -> CheckResult:
    found = evidence.starved
    if found is None or found.watched_s < limits.busy_floor_s:
        watched = 0.0 if found is None else found.watched_s
        return CheckResult(
            "starved_share",
            f"the processors were watched for {watched:.1f} s while traffic was under way, under "
            f"{limits.busy_floor_s:g} s",
        )
    return CheckResult(
        "starved_share",
        f"in {found.share:.1%} of the time in which traffic was under way no processor was free "
        f"and something waited for one; at most {limits.starved_share:.1%} is right",
        found.share,
        limits.starved_share,
    )


def _processor(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    steps = evidence.steps
    if not steps:
        yield CheckResult("overrun_share", "there are no steps")
        yield CheckResult("contended_share", "there are no steps")
        return
    overran = waited = 0
    for step in steps:
        overran += bool(step["overran"])
        waited += sum(_waited(step, phase, limits) for phase in ("compress", "apply"))
    yield CheckResult(
        "overrun_share",
        f"the computation of {overran} of {len(steps)} steps ({overran / len(steps):.1%}) took "
        f"longer than its pace; at most {limits.overrun_share:.1%} may",
        overran / len(steps),
        limits.overrun_share,
    )
    phases = 2 * len(steps)
    yield CheckResult(
        "contended_share",
        f"{waited} of {phases} compress and apply phases ({waited / phases:.1%}) took over "
        f"{limits.contended_ratio:g} times their CPU time and lost more than "
        f"{limits.contended_loss:.0%} of their step by it; at most {limits.contended_share:.1%} "
        "may",
        waited / phases,
        limits.contended_share,
    )


def _waited(step: Mapping[str, Any], phase: str, limits: Thresholds) -> bool:
    """Return whether a phase waited for a processor long enough to matter in its step."""
    wall, cpu = float(step[f"{phase}_s"]), float(step[f"{phase}_cpu_s"])
    length = float(step["end_s"]) - float(step["start_s"])
    return wall > limits.contended_ratio * cpu and wall - cpu > limits.contended_loss * length


def _completion(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    found = evidence.completion
    if not found or not found["judged"]:
        why = "no messages were followed"
        if found and found["groups"]:
            left = [f"{many} {name}" for name, many in found["not_judged"].items() if many]
            why = f"no group of messages could be judged ({', '.join(left)})"
        yield CheckResult("message_completion", why)
        return
    used, error = found["used"]["p99_at_least"], found["error"]["p99_at_least"]
    yield CheckResult(
        "message_completion",
        f"messages completed at least {error:.2%} ({found['error_ms']['p99_at_least']:.1f} ms) "
        f"off the service curve of the asked rates (p99, 95 % confidence), {used:.1f} times the "
        f"tolerance of {limits.completion_share:.0%} and {limits.completion_packets} packet times",
        used,
        1.0,
    )


def _identity(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    expected = class_bytes_expected(evidence.links, evidence.sockets)
    if not expected:
        yield CheckResult("byte_identity", "there are no socket counters to hold against the links")
    for place, (held, low, high) in expected.items():
        if (why := evidence.unaccounted.get(place)) is not None:
            yield CheckResult("byte_identity", f"{place}: {why}", place=place)
            continue
        off = max(low - held, held - high, 0.0)
        uncounted = limits.identity_slack_bytes * _connections(place, evidence.sockets)
        limit = limits.identity_deviation + uncounted / max(1.0, high)
        yield CheckResult(
            "byte_identity",
            f"{place} carried {held} B, the sockets sent {high:.0f} B through it: "
            f"{off / max(1.0, high):.2%} off; at most {limits.identity_deviation:.2%} and "
            f"{uncounted} B is right",
            off / max(1.0, high),
            limit,
            place,
        )
    if not (evidence.steps and evidence.rounds):
        yield CheckResult("frame_identity", "there are no rounds")
        return
    wrong = frames_disagree(Joined(evidence.steps, evidence.rests), evidence.rounds)
    sentence = wrong[0] if wrong else "all frames are counted alike at both ends"
    yield CheckResult("frame_identity", sentence, float(len(wrong)))


def _connections(place: str, sockets: EvidenceRecords) -> int:
    """Connections through a link direction."""
    node, _, direction = place.rpartition(" ")
    return sum(socket["node" if direction == "up" else "peer"] == node for socket in sockets)
