"""Checks of links against limits: rates, outages, delays, loss and lateness, each as a finding
with a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from testbed.fidelity.evidence import CheckResult, Evidence, State
from testbed.fidelity.run_checks import run_findings
from testbed.records.manifest import Thresholds
from testbed.scenario.link_state import FRAME_BYTES

__all__ = ["CheckResult", "Evidence", "State", "run_checks"]


def line_findings(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    """Yield the check results of all delay lines and routes."""
    yield from _losses(evidence)
    yield from _room(evidence)
    yield from _round_trips(evidence, limits)


def _losses(evidence: Evidence) -> Iterator[CheckResult]:
    if not evidence.losses:
        yield CheckResult("loss", "no link has a line that could lose packets")
    for place, seen in evidence.losses.items():
        if (used := seen.used) is None or seen.low is None or seen.high is None:
            yield CheckResult("loss", f"{place}: {seen.why}", place=place)
            continue
        yield CheckResult(
            "loss",
            f"{place} lost {seen.lost} of {seen.packets} packets, which puts its loss between "
            f"{seen.low:.4%} and {seen.high:.4%}; {seen.asked:.4%} was asked for",
            used,
            1.0,
            place,
        )


def _room(evidence: Evidence) -> Iterator[CheckResult]:
    lines = [link for link in evidence.links if link.get("line_limit") is not None]
    if not lines:
        yield CheckResult("line_room", "no delay line counts what it has no room for")
    for link in lines:
        place = f"{link['link']} {link['direction']}"
        yield CheckResult(
            "line_room",
            f"the delay line of {place} had no room for {link['line_limit']} packets; there must "
            "be for all",
            float(link["line_limit"]),
            0.0,
            place,
        )


def _round_trips(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    if not evidence.paths:
        yield CheckResult("min_rtt", "no round-trip times were counted")
    for path in evidence.paths:
        off, near = path.error_s, path.high_s if path.error_s > 0 else path.low_s
        limit_s = limits.rtt_ms / 1e3 + limits.rtt_share * near
        yield CheckResult(
            "min_rtt",
            f"the least round-trip time from {path.place} was {path.least_s * 1e3:.2f} ms, "
            f"{abs(off) * 1e3:.2f} ms {'above' if off > 0 else 'below'} what was asked "
            f"({near * 1e3:.2f} ms); at most {limit_s * 1e3:.2f} ms is right",
            abs(off),
            limit_s,
            path.place,
        )


Link = Mapping[str, Any]
"""One object of the agent's report."""

_OF_LINKS = (
    "link_ratio",
    "link_mape_1s",
    "link_excess",
    "lateness_p99_ms",
    "lateness_max_ms",
    "unwatched_share",
    "direct_share",
    "outage_bytes",
    "resume_ms",
)


def link_findings(evidence: Evidence, limits: Thresholds) -> Iterator[CheckResult]:
    """Yield the check results of all link directions."""
    yield from _read_back(evidence)
    yield from _changes(evidence)
    if not evidence.links:
        for measure in _OF_LINKS:
            yield CheckResult(measure, "there is no report of the links")
    for link in evidence.links:
        place = f"{link['link']} {link['direction']}"
        yield from _busy(link, place, evidence.seconds, limits)
        yield _excess(link, place, limits)
        yield from _lateness(link, place, limits)
        yield _unwatched(link, place, limits)
        yield _direct(link, place, limits)
        yield from _outages(link, place, limits)


def _read_back(evidence: Evidence) -> Iterator[CheckResult]:
    for place, sentences in evidence.starts.items():
        for sentence in sentences:
            yield CheckResult("read_back", f"{place}: {sentence}", 1.0, 0.0, place)
    for link in evidence.links:
        place = f"{link['link']} {link['direction']}"
        if link.get("failure"):
            yield CheckResult(
                "read_back", f"{place} failed after t0: {link['failure']}", 1.0, 0.0, place
            )
        for wrong in link.get("mismatches") or ():
            held, asked = (_in_words(wrong["what"], wrong[key]) for key in ("held", "asked"))
            yield CheckResult(
                "read_back",
                f"from {wrong['from_s']:.2f} to {wrong['to_s']:.2f} s the kernel held {held} for "
                f"{place}, not the {asked.removeprefix('a ')} that was asked",
                1.0,
                0.0,
                place,
            )


def _in_words(what: str, value: float | str) -> str:
    """A value of the kernel's: a delay line says itself what it is."""
    if what == "line":
        return str(value)
    return f"a {what} of {value} {'bit/s' if what == 'rate' else 'B'}"


def _changes(evidence: Evidence) -> Iterator[CheckResult]:
    if evidence.followed is None:
        yield CheckResult(
            "changes", "the changes that were made were not held against the scenario"
        )
        return
    for place, found in evidence.followed.items():
        faults = found.faults
        said = faults[0] if faults else f"all {found.expected} changes were made as asked"
        more = f" (and {len(faults) - 1} more faults of its changes)" if len(faults) > 1 else ""
        yield CheckResult("changes", f"{place}: {said}{more}", float(len(faults)), 0.0, place)


def _busy(link: Link, place: str, seconds: float, limits: Thresholds) -> Iterator[CheckResult]:
    share, ratio, mape = (link.get(key) for key in ("busy_share", "busy_ratio", "busy_mape_1s"))
    busy_s = (share or 0.0) * seconds
    short = f"{place} was backlogged for {busy_s:.1f} s, under {limits.busy_floor_s:g} s"
    if ratio is None or busy_s < limits.busy_floor_s:
        yield CheckResult("link_ratio", short, place=place)
    else:
        yield CheckResult(
            "link_ratio",
            f"{place} delivered {ratio:.4f} of what was asked while it was backlogged; "
            f"{1 - limits.ratio_deviation:g} to {1 + limits.ratio_deviation:g} is right",
            max(0.0, abs(ratio - 1) - link.get("busy_ratio_slack", 0.0)),
            limits.ratio_deviation,
            place,
        )
    if busy_s < limits.busy_floor_s:
        yield CheckResult("link_mape_1s", short, place=place)
    elif mape is None:
        yield CheckResult(
            "link_mape_1s", f"{place} was backlogged for no whole second", place=place
        )
    else:
        yield CheckResult(
            "link_mape_1s",
            f"{place} was off by {mape:.2%} on average per second while it was backlogged; "
            f"at most {limits.mape_1s:.2%} is right",
            mape,
            limits.mape_1s,
            place,
        )


def _excess(link: Link, place: str, limits: Thresholds) -> CheckResult:
    """More than was asked, which a link may not deliver even while nothing waits at it."""
    if (share := link.get("excess_share")) is None:
        return CheckResult(
            "link_excess", f"{place} delivered nothing in a whole second", place=place
        )
    return CheckResult(
        "link_excess",
        f"{share:.2%} of what {place} delivered is beyond what was asked in the same second; "
        f"at most {limits.excess_share:.2%} may be",
        share,
        limits.excess_share,
        place,
    )


def _lateness(link: Link, place: str, limits: Thresholds) -> Iterator[CheckResult]:
    late = link.get("lateness_ms") or {}
    if late.get("p99") is None:
        yield CheckResult("lateness_p99_ms", f"{place} never changed", place=place)
        yield CheckResult("lateness_max_ms", f"{place} never changed", place=place)
        return
    sure, worst = late.get("p99_at_least", late["p99"]), late.get("max", late["p99"])
    yield CheckResult(
        "lateness_p99_ms",
        f"{place} changed once: that shows no p99"
        if sure is None
        else f"changes of {place} came at least {sure:.1f} ms late (p99, 95 % confidence); "
        f"at most {limits.lateness_p99_ms:g} ms is right",
        sure,
        limits.lateness_p99_ms,
        place,
    )
    yield CheckResult(
        "lateness_max_ms",
        f"a change of {place} came {worst:.1f} ms late; none may by more than "
        f"{limits.lateness_max_ms:g} ms",
        worst,
        limits.lateness_max_ms,
        place,
    )


def _unwatched(link: Link, place: str, limits: Thresholds) -> CheckResult:
    watched_s = float(link.get("to_s") or 0.0) - float(link.get("from_s") or 0.0)
    if watched_s <= 0:
        return CheckResult("unwatched_share", f"{place} was not looked at", place=place)
    share = float(link["unwatched_s"]) / watched_s
    return CheckResult(
        "unwatched_share",
        f"nobody looked at {place} for {link['unwatched_s']:.2f} s ({share:.1%}) of the time; at "
        f"most {limits.unwatched_share:.1%} may be unwatched",
        share,
        limits.unwatched_share,
        place,
    )


def _direct(link: Link, place: str, limits: Thresholds) -> CheckResult:
    direct, packets = int(link.get("direct_packets") or 0), int(link.get("class_packets") or 0)
    share = direct / max(1, direct + packets)
    return CheckResult(
        "direct_share",
        f"{direct} of {direct + packets} packets ({share:.2%}) passed {place} outside its shaped "
        f"class; at most {limits.direct_share:.2%} may",
        share,
        limits.direct_share,
        place,
    )


def _outages(link: Link, place: str, limits: Thresholds) -> Iterator[CheckResult]:
    if not (outages := int(link.get("outages") or 0)):
        yield CheckResult("outage_bytes", f"{place} had no outage that ended", place=place)
        yield CheckResult("resume_ms", f"{place} had no outage that ended", place=place)
        return
    bundle = FRAME_BYTES * int(link.get("gso_max_segs") or 1)
    renewed = int(float(link.get("outage_s") or 0.0) // limits.outage_recharged_s)
    most = (outages * limits.outage_bundles + renewed) * bundle
    leaked = int(link["outage_bytes"])
    yield CheckResult(
        "outage_bytes",
        f"{leaked} B left {place} in its {outages} outages; at most {most} B may, "
        f"{limits.outage_bundles} bundles each and one every {limits.outage_recharged_s:g} s",
        float(leaked),
        float(most),
        place,
    )
    if (resume := link.get("resume_ms")) is None:
        yield CheckResult(
            "resume_ms", f"nothing waited at {place} when its outages ended", place=place
        )
        return
    yield CheckResult(
        "resume_ms",
        f"service of {place} was back {resume:.1f} ms late after an outage; at most "
        f"{limits.resume_ms:g} ms is right",
        resume,
        limits.resume_ms,
        place,
    )


def run_checks(evidence: Evidence, limits: Thresholds) -> list[CheckResult]:
    """Every measure at every place."""
    return [
        *link_findings(evidence, limits),
        *line_findings(evidence, limits),
        *run_findings(evidence, limits),
    ]
