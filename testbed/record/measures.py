"""What a verdict is found on, and each measure of it as findings: a figure, its limit and a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from testbed.record.identity import class_bytes_expected, frames_disagree
from testbed.record.thresholds import Thresholds

State = Literal["valid", "degraded", "invalid"]
Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict is found on. Everything is optional: what is absent is reported as not measured."""

    seconds: float = 0.0
    """Wall seconds that the run took."""
    links: Records = ()
    """The agent's report, one object per link direction."""
    steps: Records = ()
    """``StepRecord`` objects of all workers."""
    rounds: Records = ()
    """``RoundRecord`` objects of the server."""
    sockets: Records = ()
    """Per data socket ``{"node", "peer", "bytes_sent", "segs_out"}``, node and peer by name."""
    completion: Mapping[str, Any] | None = None
    """What ``completion.measure`` returned."""
    foreign_drops: Mapping[str, int] | None = None
    """Packets dropped outside the emulated queues, by place."""
    stolen_share: float | None = None
    """Share of the host's processor time that a hypervisor gave to others."""
    faults: Sequence[str] = ()
    """A sentence for everything in which the nodes' own counts and replicas do not agree."""
    mismatches: Sequence[str] = ()
    """A sentence for every link whose read-back is not what was asked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One measure at one place. ``deviation`` None: not measured, and ``sentence`` says why."""

    measure: str
    sentence: str
    deviation: float | None = None
    limit: float = 0.0
    place: str | None = None

    def state(self, factor: float) -> State:
        """Valid within the limit, degraded within ``factor`` times it. Not measured is not a fault."""
        # The allowance is for the rounding of the deviation itself: 1.02 - 1 is above 0.02.
        if self.deviation is None or self.deviation <= self.limit * (1 + 1e-9):
            return "valid"
        return "degraded" if self.deviation <= factor * self.limit * (1 + 1e-9) else "invalid"


def findings(evidence: Evidence, limits: Thresholds) -> list[Finding]:
    """Every measure at every place."""
    return [
        *_read_back(evidence),
        *_consistency(evidence),
        *_links(evidence, limits),
        *_drops(evidence, limits),
        *_stolen(evidence, limits),
        *_processor(evidence, limits),
        *_completion(evidence, limits),
        *_identity(evidence, limits),
    ]


def _read_back(evidence: Evidence) -> Iterator[Finding]:
    for sentence in evidence.mismatches:
        yield Finding("read_back", f"the kernel does not hold what was asked: {sentence}", 1.0)
    for link in evidence.links:
        if link.get("failure"):
            place = f"{link['link']} {link['direction']}"
            yield Finding(
                "read_back", f"{place} failed after t0: {link['failure']}", 1.0, 0.0, place
            )


def _consistency(evidence: Evidence) -> Iterator[Finding]:
    for sentence in evidence.faults:
        yield Finding("consistency", sentence, 1.0)


def _links(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    if not evidence.links:
        for measure in ("link_ratio", "link_mape_1s", "lateness_p99_ms", "direct_share"):
            yield Finding(measure, "there is no report of the links")
    for link in evidence.links:
        place = f"{link['link']} {link['direction']}"
        yield from _busy(link, place, evidence.seconds, limits)
        yield _lateness(link, place, limits)
        direct, packets = int(link.get("direct_packets") or 0), int(link.get("class_packets") or 0)
        share = direct / max(1, direct + packets)
        yield Finding(
            "direct_share",
            f"{direct} of {direct + packets} packets ({share:.2%}) passed {place} outside its shaped "
            f"class; at most {limits.direct_share:.2%} may",
            share, limits.direct_share, place,
        )  # fmt: skip


def _busy(
    link: Mapping[str, Any], place: str, seconds: float, limits: Thresholds
) -> Iterator[Finding]:
    share, ratio, mape = (link.get(key) for key in ("busy_share", "busy_ratio", "busy_mape_1s"))
    busy_s = (share or 0.0) * seconds
    short = f"{place} was backlogged for {busy_s:.1f} s, under {limits.busy_floor_s:g} s"
    if ratio is None or busy_s < limits.busy_floor_s:
        yield Finding("link_ratio", short, place=place)
    else:
        yield Finding(
            "link_ratio",
            f"{place} delivered {ratio:.4f} of what was asked while it was backlogged; "
            f"{1 - limits.ratio_deviation:g} to {1 + limits.ratio_deviation:g} is right",
            abs(ratio - 1), limits.ratio_deviation, place,
        )  # fmt: skip
    if mape is None or busy_s < limits.busy_floor_s:
        yield Finding("link_mape_1s", short, place=place)
    else:
        yield Finding(
            "link_mape_1s",
            f"{place} was off by {mape:.2%} on average per second while it was backlogged; "
            f"at most {limits.mape_1s:.2%} is right",
            mape, limits.mape_1s, place,
        )  # fmt: skip


def _lateness(link: Mapping[str, Any], place: str, limits: Thresholds) -> Finding:
    late = (link.get("lateness_ms") or {}).get("p99")
    if late is None:
        return Finding("lateness_p99_ms", f"{place} never changed", place=place)
    return Finding(
        "lateness_p99_ms",
        f"changes of {place} came {late:.1f} ms late (p99); at most {limits.lateness_p99_ms:g} ms is right",
        late, limits.lateness_p99_ms, place,
    )  # fmt: skip


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


def _processor(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    steps = evidence.steps
    if not steps:
        yield Finding("overrun_share", "there are no steps")
        yield Finding("contended_share", "there are no steps")
        return
    overran = sum(bool(step["overran"]) for step in steps)
    yield Finding(
        "overrun_share",
        f"the computation of {overran} of {len(steps)} steps ({overran / len(steps):.1%}) took longer "
        f"than its pace; at most {limits.overrun_share:.1%} may",
        overran / len(steps), limits.overrun_share,
    )  # fmt: skip
    waited = sum(_waited(step, phase, limits) for step in steps for phase in ("compress", "apply"))
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
        why = "no messages were followed" if not found or not found["groups"] else (
            f"of {found['groups']} groups of messages {found['short']} were too short, "
            f"{found['with_drops']} met drops in an emulated queue, "
            f"{found['with_theft']} met a stolen processor and {found['unsampled']} went over "
            "links without samples"
        )  # fmt: skip
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
    wrong = frames_disagree(evidence.steps, evidence.rounds)
    sentence = wrong[0] if wrong else "all frames are counted alike at both ends"
    yield Finding("frame_identity", sentence, float(len(wrong)))


def _connections(place: str, sockets: Records) -> int:
    """Connections through a link direction."""
    node, _, direction = place.rpartition(" ")
    return sum(socket["node" if direction == "up" else "peer"] == node for socket in sockets)
