"""Checks of a run: processor time, byte identity (the kernel's class, sockets and frames must
agree), node events, and messages' completion. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from testbed.fidelity.evidence import CheckResult, Evidence, NodesSeen
from testbed.records.intervals import quantiles
from testbed.records.manifest import Thresholds
from testbed.records.stored import Joined, Records
from testbed.scenario.link_state import FRAME_BYTES, SEGMENT_HEADER_BYTES
from testbed.scenario.node_timeline import NodeChange

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
        carried = int(link["class_bytes"])
        result[f"{node} {direction}"] = carried, float(sent - most), float(sent - least)
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
    received: dict[int, tuple[int, int]] = {}
    for round_ in rounds:
        number, messages = int(round_["step"]), round_["messages"]
        if sent.get(number, (0, 0, 0))[2] != len(messages) + len(round_.get("others", [])):
            continue  # cut short: some worker never finished this step
        up, down = received.get(number, (0, 0))
        up += sum(int(m["bytes"]) for m in messages)
        received[number] = up, down + int(round_["bytes_down"])
    return [
        f"step {number}: the workers counted {sent[number][0]} B up and {sent[number][1]} B down, "
        f"the server {up} B and {down} B; not a byte may differ"
        for number, (up, down) in received.items()
        if (up, down) != sent[number][:2]
    ]


STILL_S = 1.0
"""Seconds before the end of the run; a change that was due in them may be on its way."""


def nodes_seen(
    requested: Iterable[NodeChange], records: Iterable[Mapping[str, Any]], until_s: float
) -> NodesSeen:
    """``records``: ``node`` records; what was due after ``until_s`` is not expected."""
    left = {
        (record["node"], record["action"], round(float(record["due_s"]), 6)): record
        for record in records
    }
    expected, late_ms, faults = 0, list[float](), list[str]()
    for change in requested:
        key = change.node, change.action, round(change.time_s, 6)
        if (record := left.pop(key, None)) is not None:
            expected += 1
            late_ms.append(1e3 * (float(record["applied_s"]) - float(record["due_s"])))
        elif change.time_s <= until_s - STILL_S:
            expected += 1
            due = f"{change.action} of {change.node}, due at {change.time_s:.3f} s"
            faults.append(f"{due}, was never done")
    faults += [
        f"{action} of {node} at {due_s:.3f} s: nobody asked for it" for node, action, due_s in left
    ]
    return NodesSeen(expected, len(late_ms), faults, quantiles(late_ms))


def run_findings(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    """Yield the check results of the run as a whole, and of its host."""
    yield from _nodes(evidence.nodes, limits)
    for sentence in evidence.faults:
        yield CheckResult("consistency", sentence, 1.0)
    yield from _bypasses(evidence)
    yield from _drops(evidence, limits)
    yield _stolen(evidence, limits)
    yield _starved(evidence, limits)
    yield from _processor(evidence, limits)
    yield _completion(evidence, limits)
    yield from _identity(evidence, limits)


def _nodes(nodes: NodesSeen | None, limits: Thresholds) -> Iterator[CheckResult]:
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
    text = (
        f"an event of a node was done {most:.1f} ms late; at most {limits.node_lateness_ms:g} ms "
        "is right"
    )
    yield CheckResult("node_lateness_ms", text, most, limits.node_lateness_ms)


def _bypasses(evidence: Evidence) -> Iterator[CheckResult]:
    """Check for traffic around the links: bytes that a link did not carry say nothing of it,
    however little else there is."""
    if evidence.bypasses is None:
        return
    if not (evidence.bypasses or evidence.bypass_unwatched):
        yield CheckResult("around", "nothing went around the links", 0.0)
    for sentence in evidence.bypasses:
        yield CheckResult("around", sentence, 1.0)
    for sentence in evidence.bypass_unwatched:
        yield CheckResult("around", sentence)


def _drops(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    if evidence.foreign_drops is None:
        yield CheckResult("foreign_drops", "drops outside the emulated queues were not counted")
        return
    for subject, drops in evidence.foreign_drops.items():
        text = (
            f"{drops} packets were dropped at {subject}, outside the emulated queues; "
            f"at most {limits.foreign_drops} may be"
        )
        yield CheckResult("foreign_drops", text, float(drops), limits.foreign_drops, subject)


def _stolen(evidence: Evidence, limits: Thresholds) -> CheckResult:
    share = evidence.stolen_share
    if share is None:
        text = "processor time lost to other machines was not counted"
        return CheckResult("stolen_share", text)
    text = (
        f"{share:.1%} of this host's processor time was taken by others on the same hardware; "
        f"at most {limits.stolen_share:.1%} may be"
    )
    return CheckResult("stolen_share", text, share, limits.stolen_share)


def _starved(evidence: Evidence, limits: Thresholds) -> CheckResult:
    starved = evidence.cpu_starvation
    if starved is None or starved.watched_s < limits.busy_floor_s:
        watched_s = 0.0 if starved is None else starved.watched_s
        text = (
            f"the processors were watched for {watched_s:.1f} s while traffic was under way, under "
            f"{limits.busy_floor_s:g} s"
        )
        return CheckResult("starved_share", text)
    text = (
        f"in {starved.share:.1%} of the time in which traffic was under way no processor was free "
        f"and something waited for one; at most {limits.starved_share:.1%} is right"
    )
    return CheckResult("starved_share", text, starved.share, limits.starved_share)


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
    share = overran / len(steps)
    text = (
        f"the computation of {overran} of {len(steps)} steps ({share:.1%}) took "
        f"longer than its pace; at most {limits.overrun_share:.1%} may"
    )
    yield CheckResult("overrun_share", text, share, limits.overrun_share)
    phases = 2 * len(steps)
    share = waited / phases
    text = (
        f"{waited} of {phases} compress and apply phases ({share:.1%}) took over "
        f"{limits.contended_ratio:g} times their CPU time and lost more than "
        f"{limits.contended_loss:.0%} of their step by it; at most {limits.contended_share:.1%} may"
    )
    yield CheckResult("contended_share", text, share, limits.contended_share)


def _waited(step: Mapping[str, Any], phase: str, limits: Thresholds) -> bool:
    """Return whether a phase waited for a processor long enough to matter in its step."""
    wall, cpu = float(step[f"{phase}_s"]), float(step[f"{phase}_cpu_s"])
    length = float(step["end_s"]) - float(step["start_s"])
    return wall > limits.contended_ratio * cpu and wall - cpu > limits.contended_loss * length


def _completion(evidence: Evidence, limits: Thresholds) -> CheckResult:
    messages = evidence.completion
    if not messages or not messages["judged"]:
        why = "no messages were followed"
        if messages and messages["groups"]:
            counts = messages["not_judged"].items()
            listed = ", ".join(f"{count} {name}" for name, count in counts if count)
            why = f"no group of messages could be judged ({listed})"
        return CheckResult("message_completion", why)
    used, error = messages["used"]["p99_at_least"], messages["error"]["p99_at_least"]
    text = (
        f"messages completed at least {error:.2%} ({messages['error_ms']['p99_at_least']:.1f} ms) "
        f"off the service curve of the asked rates (p99, 95 % confidence), {used:.1f} times the "
        f"tolerance of {limits.completion_share:.0%} and {limits.completion_packets} packet times"
    )
    return CheckResult("message_completion", text, used, 1.0)


def _identity(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    expected = class_bytes_expected(evidence.links, evidence.sockets)
    if not expected:
        yield CheckResult("byte_identity", "there are no socket counters to hold against the links")
    for end, (carried, low, high) in expected.items():
        if (why := evidence.unattributed.get(end)) is not None:
            yield CheckResult("byte_identity", f"{end}: {why}", subject=end)
            continue
        share = max(low - carried, carried - high, 0.0) / max(1.0, high)
        uncounted = limits.identity_slack_bytes * _connections(end, evidence.sockets)
        limit = limits.identity_deviation + uncounted / max(1.0, high)
        text = (
            f"{end} carried {carried} B, the sockets sent {high:.0f} B through it: "
            f"{share:.2%} off; at most {limits.identity_deviation:.2%} and {uncounted} B is right"
        )
        yield CheckResult("byte_identity", text, share, limit, end)
    if not (evidence.steps and evidence.rounds):
        yield CheckResult("frame_identity", "there are no rounds")
        return
    wrong = frames_disagree(Joined(evidence.steps, evidence.rests), evidence.rounds)
    sentence = wrong[0] if wrong else "all frames are counted alike at both ends"
    yield CheckResult("frame_identity", sentence, float(len(wrong)))


def _connections(end: str, sockets: Records) -> int:
    """Connections through a link direction."""
    node, _, direction = end.rpartition(" ")
    return sum(socket["node" if direction == "up" else "peer"] == node for socket in sockets)
