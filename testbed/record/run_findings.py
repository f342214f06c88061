"""Was there processor enough, are all bytes accounted for, and did messages come on time? Measures of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from testbed.record.evidence import Evidence, Records
from testbed.record.finding import Finding
from testbed.record.identity import class_bytes_expected, frames_disagree
from testbed.record.node_events import node_findings
from testbed.record.stored import Joined
from testbed.record.thresholds import Thresholds


def run_findings(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    """Of the run as a whole, and of its host."""
    yield from node_findings(evidence.nodes, limits)
    yield from _consistency(evidence)
    yield from _around(evidence)
    yield from _drops(evidence, limits)
    yield from _stolen(evidence, limits)
    yield _starved(evidence, limits)
    yield from _processor(evidence, limits)
    yield from _completion(evidence, limits)
    yield from _identity(evidence, limits)


def _consistency(evidence: Evidence) -> Iterator[Finding]:
    for sentence in evidence.faults:
        yield Finding("consistency", sentence, 1.0)


def _around(evidence: Evidence) -> Iterator[Finding]:
    """What a link did not carry says nothing of it, however little else there is to be found."""
    if evidence.around is None:
        return
    if not (evidence.around or evidence.unwatched):
        yield Finding("around", "nothing went around the links", 0.0)
    for sentence in evidence.around:
        yield Finding("around", sentence, 1.0)
    for sentence in evidence.unwatched:
        yield Finding("around", sentence)


def _drops(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    if evidence.foreign_drops is None:
        yield Finding("foreign_drops", "drops outside the emulated queues were not counted")
        return
    for place, drops in evidence.foreign_drops.items():
        yield Finding(
            "foreign_drops",
            f"{drops} packets were dropped at {place}, outside the emulated queues; "
            f"at most {limits.foreign_drops} may be",
            float(drops), limits.foreign_drops, place,
        )  # fmt: skip


def _stolen(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    share = evidence.stolen_share
    if share is None:
        yield Finding("stolen_share", "processor time lost to other machines was not counted")
        return
    yield Finding(
        "stolen_share",
        f"{share:.1%} of this host's processor time was taken by others on the same hardware; "
        f"at most {limits.stolen_share:.1%} may be",
        share, limits.stolen_share,
    )  # fmt: skip


def _starved(evidence: Evidence, limits: Thresholds) -> Finding:
    found = evidence.starved
    if found is None or found.watched_s < limits.busy_floor_s:
        watched = 0.0 if found is None else found.watched_s
        return Finding(
            "starved_share",
            f"the processors were watched for {watched:.1f} s while traffic was under way, under "
            f"{limits.busy_floor_s:g} s",
        )
    return Finding(
        "starved_share",
        f"in {found.share:.1%} of the time in which traffic was under way no processor was free and something "
        f"waited for one; at most {limits.starved_share:.1%} is right",
        found.share, limits.starved_share,
    )  # fmt: skip


def _processor(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    steps = evidence.steps
    if not steps:
        yield Finding("overrun_share", "there are no steps")
        yield Finding("contended_share", "there are no steps")
        return
    overran = waited = 0
    for step in steps:
        overran += bool(step["overran"])
        waited += sum(_waited(step, phase, limits) for phase in ("compress", "apply"))
    yield Finding(
        "overrun_share",
        f"the computation of {overran} of {len(steps)} steps ({overran / len(steps):.1%}) took longer "
        f"than its pace; at most {limits.overrun_share:.1%} may",
        overran / len(steps), limits.overrun_share,
    )  # fmt: skip
    phases = 2 * len(steps)
    yield Finding(
        "contended_share",
        f"{waited} of {phases} compress and apply phases ({waited / phases:.1%}) took over "
        f"{limits.contended_ratio:g} times their CPU time and lost more than "
        f"{limits.contended_loss:.0%} of their step by it; at most {limits.contended_share:.1%} may",
        waited / phases, limits.contended_share,
    )  # fmt: skip


def _waited(step: Mapping[str, Any], phase: str, limits: Thresholds) -> bool:
    """Whether a phase waited for a processor long enough to matter in its step."""
    wall, cpu = float(step[f"{phase}_s"]), float(step[f"{phase}_cpu_s"])
    length = float(step["end_s"]) - float(step["start_s"])
    return wall > limits.contended_ratio * cpu and wall - cpu > limits.contended_loss * length


def _completion(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    found = evidence.completion
    if not found or not found["judged"]:
        why = "no messages were followed"
        if found and found["groups"]:
            left = [f"{many} {name}" for name, many in found["not_judged"].items() if many]
            why = f"no group of messages could be judged ({', '.join(left)})"
        yield Finding("message_completion", why)
        return
    used, error = found["used"]["p99_at_least"], found["error"]["p99_at_least"]
    yield Finding(
        "message_completion",
        f"messages completed at least {error:.2%} ({found['error_ms']['p99_at_least']:.1f} ms) off the "
        f"service curve of the asked rates (p99, 95 % confidence), {used:.1f} times the tolerance of "
        f"{limits.completion_share:.0%} and {limits.completion_packets} packet times",
        used, 1.0,
    )  # fmt: skip


def _identity(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    expected = class_bytes_expected(evidence.links, evidence.sockets)
    if not expected:
        yield Finding("byte_identity", "there are no socket counters to hold against the links")
    for place, (held, low, high) in expected.items():
        if (why := evidence.unaccounted.get(place)) is not None:
            yield Finding("byte_identity", f"{place}: {why}", place=place)
            continue
        off = max(low - held, held - high, 0.0)
        uncounted = limits.identity_slack_bytes * _connections(place, evidence.sockets)
        limit = limits.identity_deviation + uncounted / max(1.0, high)
        yield Finding(
            "byte_identity",
            f"{place} carried {held} B, the sockets sent {high:.0f} B through it: "
            f"{off / max(1.0, high):.2%} off; at most {limits.identity_deviation:.2%} and {uncounted} B is "
            "right",
            off / max(1.0, high), limit, place,
        )  # fmt: skip
    if not (evidence.steps and evidence.rounds):
        yield Finding("frame_identity", "there are no rounds")
        return
    wrong = frames_disagree(Joined(evidence.steps, evidence.rests), evidence.rounds)
    sentence = wrong[0] if wrong else "all frames are counted alike at both ends"
    yield Finding("frame_identity", sentence, float(len(wrong)))


def _connections(place: str, sockets: Records) -> int:
    """Connections through a link direction."""
    node, _, direction = place.rpartition(" ")
    return sum(socket["node" if direction == "up" else "peer"] == node for socket in sockets)
