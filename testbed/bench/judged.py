"""A short session on many links, both directions filled, and what the certificate says of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from testbed.bench.alternatives import segments
from testbed.bench.figures import Step, queue_bytes
from testbed.bench.flows import bulk, busy, lead_s
from testbed.bench.lab import CONGESTION, Lab
from testbed.links.client import LinkReport, LinkSettings
from testbed.record.asked import Asked
from testbed.record.gather import gather
from testbed.record.history import LinkHistory
from testbed.record.measures import Finding, findings
from testbed.record.spans import Spans
from testbed.record.thresholds import THRESHOLDS
from testbed.record.verdict import Verdict, judge_filled
from testbed.scenario.shape import End, LinkChange, Shape
from testbed.session.conditions import backlog_drops
from testbed.session.host_watch import HostWatch

Histories = Mapping[End, Sequence[Step]]
Meanwhile = Callable[[int], None]
"""Called with t0 (monotonic ns) when it has been set; what it does must end before the session does."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The findings of one session; ``alarms`` are those that are not valid. ``verdict``: what a replay would be given for them."""

    report: LinkReport
    findings: Sequence[Finding]
    verdict: Verdict | None = None

    @property
    def alarms(self) -> list[Finding]:
        """What keeps the session from being valid; all links are filled, so that one must be judged."""
        return [
            one
            for one in self.findings
            if one.state(THRESHOLDS.degraded_factor) != "valid"
            or (one.measure == "link_ratio" and one.deviation is None)
        ]

    @property
    def valid(self) -> bool:
        """Whether all measures are."""
        return not self.alarms

    def of(self, end: End) -> list[Finding]:
        """Alarms at one link direction."""
        return [one for one in self.alarms if one.place == str(end)]

    def elsewhere(self, ends: Sequence[End]) -> list[Finding]:
        """Alarms at none of these: of the host, or of the session as a whole."""
        places = set(map(str, ends))
        return [one for one in self.alarms if one.place not in places]


def _nothing(_t0_ns: int) -> None:
    pass


def session(
    lab: Lab,
    histories: Histories,
    seconds: float,
    *,
    loops: int = 0,
    meanwhile: Meanwhile = _nothing,
) -> Judged:
    """Have every end follow its history for ``seconds`` under load, then judge it as runs are judged."""
    nodes = sorted({end.link for end in histories})
    initial, changes = _asked(histories)
    records: list[dict[str, Any]] = []
    lab.agent.on_sample = records.extend
    held = lab.agent.prepare(
        {node: lab.places[node].cable for node in nodes},
        initial,
        LinkSettings(segments=segments(list(histories.values())), congestion=CONGESTION),
    )
    with (
        bulk(lab, nodes, seconds, "both"),
        busy(loops, lead_s(len(nodes)) + seconds + 1),
    ):
        t0_ns = time.monotonic_ns() + int(lead_s(len(nodes)) * 1e9)
        lab.agent.start(t0_ns, iter(changes))
        try:
            dropped = _meanwhile(t0_ns, seconds, records, meanwhile)
        finally:
            report = lab.agent.stop()
    evidence = gather(
        report.to_json()["links"],
        LinkHistory(records),
        Asked(initial, [change for change in changes if change.time_s < seconds]),
        seconds=seconds,
        processors=os.cpu_count() or 1,
        under_way=Spans([(0.0, seconds)]),
        held=held["links"],
    )
    evidence = replace(evidence, foreign_drops={"the host's receive backlog": dropped})
    return Judged(report, findings(evidence, THRESHOLDS), judge_filled(evidence))


def _meanwhile(t0_ns: int, seconds: float, records: list[dict[str, Any]], what: Meanwhile) -> int:
    """From t0 to the end, the host watched; returns the packets that it dropped itself."""
    _sleep_until(t0_ns)
    dropped = backlog_drops()
    watch = HostWatch(t0_ns, records.append)
    try:
        what(t0_ns)
        _sleep_until(t0_ns + round(seconds * 1e9))
    finally:
        watch.stop()
    return backlog_drops() - dropped


def _asked(histories: Histories) -> tuple[dict[End, Shape], list[LinkChange]]:
    """Shapes at t0, and all changes in order of time."""
    initial = {
        end: Shape(history[0][1], queue_bytes(history)) for end, history in histories.items()
    }
    changes = [
        LinkChange(at, end, Shape(rate, queue_bytes(history)))
        for end, history in histories.items()
        for at, rate in history[1:]
    ]
    return initial, sorted(changes, key=lambda change: change.time_s)


def _sleep_until(time_ns: int) -> None:
    time.sleep(max(0.0, (time_ns - time.monotonic_ns()) / 1e9))
