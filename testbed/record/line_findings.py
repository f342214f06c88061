"""Did packets take the time, and get lost, as was asked? The measures of delay lines and of whole ways."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.record.evidence import Evidence
from testbed.record.finding import Finding
from testbed.record.thresholds import Thresholds


def line_findings(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    """Of all delay lines and ways."""
    yield from _losses(evidence)
    yield from _room(evidence)
    yield from _round_trips(evidence, limits)


def _losses(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.losses:
        yield Finding("loss", "no link has a line that could lose packets")
    for place, seen in evidence.losses.items():
        if (used := seen.used) is None or seen.low is None or seen.high is None:
            yield Finding("loss", f"{place}: {seen.why}", place=place)
            continue
        yield Finding(
            "loss",
            f"{place} lost {seen.lost} of {seen.packets} packets, which puts its loss between {seen.low:.4%} and "
            f"{seen.high:.4%}; {seen.asked:.4%} was asked for",
            used, 1.0, place,
        )  # fmt: skip


def _room(evidence: Evidence) -> Iterator[Finding]:
    lines = [link for link in evidence.links if link.get("line_limit") is not None]
    if not lines:
        yield Finding("line_room", "no delay line counts what it has no room for")
    for link in lines:
        place = f"{link['link']} {link['direction']}"
        yield Finding(
            "line_room",
            f"the delay line of {place} had no room for {link['line_limit']} packets; there must be for all",
            float(link["line_limit"]), 0.0, place,
        )  # fmt: skip


def _round_trips(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    if not evidence.paths:
        yield Finding("min_rtt", "no round-trip times were counted")
    for path in evidence.paths:
        off, near = path.error_s, path.high_s if path.error_s > 0 else path.low_s
        limit_s = limits.rtt_ms / 1e3 + limits.rtt_share * near
        yield Finding(
            "min_rtt",
            f"the least round-trip time from {path.place} was {path.least_s * 1e3:.2f} ms, "
            f"{abs(off) * 1e3:.2f} ms {'above' if off > 0 else 'below'} what was asked ({near * 1e3:.2f} ms); "
            f"at most {limit_s * 1e3:.2f} ms is right",
            abs(off), limit_s, path.place,
        )  # fmt: skip
