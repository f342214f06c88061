"""Verdict on whether a run may be believed: measures against one table of thresholds, each with its
reason; times in which this machine was not reliable; and the certificate. The table is
``records.manifest.Thresholds``, the measures are from ``link_checks.all_findings``. Pure.

Within a threshold a measure is *valid*, up to ``degraded_factor`` times it *degraded*, beyond
it *invalid*; a run is as good as its worst measure. What could not be measured is said, and counts
for nothing. ``evidence.CheckResult.state`` has this rule.

Every field is explained in docs/reference/certificate.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from math import inf
from typing import Any

from testbed.fidelity.evidence import (
    ChangeAudit,
    CheckResult,
    Evidence,
    LossSeen,
    NodesSeen,
    PathSeen,
    State,
)
from testbed.fidelity.link_checks import all_findings
from testbed.records.events import UnreliableInterval
from testbed.records.intervals import HostLog, IntervalSet
from testbed.records.link_log import LinkLog
from testbed.records.manifest import THRESHOLDS, Thresholds

__all__ = ["THRESHOLDS", "Evidence", "State", "Thresholds", "Verdict", "judge", "judge_filled"]


_ORDER: tuple[State, ...] = ("valid", "degraded", "invalid")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state, a sentence for everything that kept it from being valid, and all measures.

    Of links that were to be filled also a sentence for each that was not judged, which begins so.
    """

    state: State
    reasons: list[str] = field(default_factory=list)
    measures: dict[str, Any] = field(default_factory=dict)
    ended: bool = True
    """False: the run was cut short or failed, and nothing of it is a result."""

    def to_json(self) -> dict[str, Any]:
        """``{"verdict", "reasons": [...], "measures": {...}}``."""
        return {"verdict": self.state, "reasons": self.reasons, "measures": self.measures}

    @classmethod
    def of_failure(cls, error: BaseException) -> Verdict:
        """On a run that ``error`` ended before its time."""
        return cls("invalid", [f"The run did not end: {error}"], ended=False)


def judge(evidence: Evidence, thresholds: Thresholds = THRESHOLDS) -> Verdict:
    """Find the verdict: worst reasons first, and the worst subject of each measure."""
    results = all_findings(evidence, thresholds)
    states = [finding.state(thresholds.degraded_factor) for finding in results]
    judged = sorted(zip(results, states, strict=True), key=lambda pair: -_ORDER.index(pair[1]))
    measures = _measures(results, thresholds.degraded_factor)
    if evidence.completion is not None:
        measures["completion"] = dict(evidence.completion)
    return Verdict(
        state=max(states, key=_ORDER.index, default="valid"),
        reasons=[finding.sentence for finding, state in judged if state != "valid"],
        measures=measures,
    )


def judge_filled(evidence: Evidence, thresholds: Thresholds = THRESHOLDS) -> Verdict:
    """The verdict on links that were to be filled, as a replay does: what was too seldom full is
    said at the end.

    The state is that of ``judge``: what was not measured is no fault, but whoever reads the result
    must know.
    """
    verdict = judge(evidence, thresholds)
    unjudged = [
        f"not judged: {finding.sentence}"
        for finding in all_findings(evidence, thresholds)
        if finding.measure == "link_ratio" and finding.deviation is None
    ]
    return replace(verdict, reasons=[*verdict.reasons, *unjudged])


def _measures(results: list[CheckResult], factor: float) -> dict[str, Any]:
    measures: dict[str, Any] = {}
    for name in dict.fromkeys(finding.measure for finding in results):
        same = [finding for finding in results if finding.measure == name]
        measured = [finding for finding in same if finding.deviation is not None]
        if not measured:
            measures[name] = f"not measured: {same[0].sentence}"
            continue
        worst = max(measured, key=_share_of_limit)
        measures[name] = {
            "deviation": worst.deviation,
            "limit": worst.limit,
            "state": worst.state(factor),
            "place": worst.subject,
            "judged": len(measured),
            "not_judged": len(same) - len(measured),
        }
    return measures


def _share_of_limit(finding: CheckResult) -> tuple[float, float]:
    """Return how much of its limit a measured deviation takes, and the deviation: limits of one
    measure may differ from place to place."""
    deviation = finding.deviation or 0.0
    if not finding.limit:
        return inf if deviation else 0.0, deviation
    return deviation / finding.limit, deviation


def disturbed(
    history: LinkLog, under_way: IntervalSet, limits: Thresholds
) -> list[UnreliableInterval]:
    """All of them by time. Lack of a processor counts only while traffic was ``under_way``."""
    intervals = [
        *_of("stolen", history.host.stolen()),
        *_of("starved", history.host.starved(under_way, limits)),
        *_of("backlog", history.host.dropping()),
        *_of("late", IntervalSet(chain(history.late, _late_changes(history, limits)))),
        *_read_back(history),
    ]
    return sorted(intervals, key=lambda span: (span.from_s, span.reason))


def _of(reason: str, spans: IntervalSet) -> Iterator[UnreliableInterval]:
    for from_s, to_s in spans:
        if to_s > 0:  # what was over before t0 disturbed nothing
            yield UnreliableInterval(max(0.0, from_s), to_s, reason)


def _late_changes(history: LinkLog, limits: Thresholds) -> Iterable[tuple[float, float]]:
    for changes in history.changes.values():
        for change in changes:
            if change.applied_s - change.due_s > limits.lateness_p99_ms / 1e3:
                yield change.due_s, change.applied_s


def _read_back(history: LinkLog) -> Iterator[UnreliableInterval]:
    for wrong in history.mismatches:
        end = f"{wrong['link']} {wrong['direction']}"
        yield UnreliableInterval(float(wrong["from_s"]), float(wrong["to_s"]), "read_back", (end,))


FORMAT = 1
CERTIFICATE = "certificate.json"
_SAID = ("link", "direction", "from_s", "to_s", "asked_bits", "delivered_bits", "ratio")
_BUSY = (
    "busy_share",
    "busy_ratio",
    "busy_ratio_slack",
    "busy_mape_1s",
    "busy_worst_1s",
    "busy_bins_1s",
    "busy_mape_step",
)
_QUEUE = (
    *("largest_backlog_bytes", "excess_share", "drops", "direct_packets", "class_packets"),
    "gso_max_segs",
)
_WATCH = ("unwatched_s", "realtime", "failure", "mismatches")


def certificate(
    evidence: Evidence,
    verdict: Verdict,
    host: HostLog,
    disturbed: Sequence[UnreliableInterval],
    *,
    dilation: float,
    processors: int,
    not_replayed: Sequence[str] = (),
    hosts: Sequence[Mapping[str, Any]] = (),
    thresholds: Thresholds = THRESHOLDS,
) -> dict[str, Any]:
    """The object that becomes ``certificate.json``. All times are wall time.

    ``not_replayed``: what the scenario asks for and a replay leaves out. ``hosts``: of a swarm.
    """
    return {
        "format": FORMAT,
        "verdict": verdict.state,
        "reasons": verdict.reasons,
        "seconds": evidence.seconds,
        "dilation": dilation,
        "not_replayed": list(not_replayed),
        "links": [_link(link, evidence) for link in evidence.links],
        "ways": [_path_summary(path) for path in evidence.paths],
        "nodes": None if evidence.nodes is None else _nodes(evidence.nodes),
        "completion": None if evidence.completion is None else dict(evidence.completion),
        "host": {
            "processors": processors,
            **host.summary(),
            "stolen_share": evidence.stolen_share,
            "starved": None if evidence.cpu_starvation is None else asdict(evidence.cpu_starvation),
            "foreign_drops": None
            if evidence.foreign_drops is None
            else dict(evidence.foreign_drops),
        },
        **({"hosts": [dict(each) for each in hosts]} if hosts else {}),
        "disturbed": [_span(span) for span in disturbed],
        "measures": {
            name: measure for name, measure in verdict.measures.items() if name != "completion"
        },
        "thresholds": asdict(thresholds),
    }


def _link(link: Mapping[str, Any], evidence: Evidence) -> dict[str, Any]:
    end = f"{link['link']} {link['direction']}"
    followed = None if evidence.followed is None else evidence.followed.get(end)
    return {
        **_some(link, _SAID),
        "per_second": {"mape": link.get("mape_1s"), "worst": link.get("worst_1s")},
        "per_step": {"mape": link.get("mape_step")},
        "busy": {name.removeprefix("busy_"): link.get(name) for name in _BUSY},
        "changes": _changes(link, followed, evidence.starts.get(end, ())),
        "queue": _some(link, _QUEUE),
        "outages": {
            "count": link.get("outages"),
            "bytes": link.get("outage_bytes"),
            "worst_bytes": link.get("outage_worst_bytes"),
            "worst_s": link.get("outage_worst_s"),
            "resume_ms": link.get("resume_ms"),
            "seconds": link.get("outage_s"),
        },
        "line": _line(link, evidence.losses.get(end)),
        "watch": _some(link, _WATCH),
    }


def _some(link: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: link.get(name) for name in names}


def _changes(
    link: Mapping[str, Any], followed: ChangeAudit | None, starts: Sequence[str]
) -> dict[str, Any]:
    return {
        "expected": None if followed is None else followed.expected,
        "applied": link.get("changes"),
        "missing": None if followed is None else len(followed.missing),
        "faults": [*starts, *(() if followed is None else followed.faults)],
        "lateness_ms": link.get("lateness_ms"),
    }


def _line(link: Mapping[str, Any], loss: LossSeen | None) -> dict[str, Any] | None:
    """None where there is no delay line."""
    if link.get("line_packets") is None:
        return None
    fields = None if loss is None else asdict(loss)
    return {"packets": link["line_packets"], "refused": link.get("line_limit"), "loss": fields}


def _path_summary(path: PathSeen) -> dict[str, Any]:
    return {
        "node": path.node,
        "peer": path.peer,
        "least_ms": path.least_s * 1e3,
        "asked_ms": [path.low_s * 1e3, path.high_s * 1e3],
        "error_ms": path.error_s * 1e3,
    }


def _nodes(nodes: NodesSeen) -> dict[str, Any]:
    return {
        "expected": nodes.expected,
        "applied": nodes.applied,
        "faults": list(nodes.faults),
        "lateness_ms": dict(nodes.lateness_ms),
    }


def _span(span: UnreliableInterval) -> dict[str, Any]:
    return {name: value for name, value in span.to_json().items() if name not in {"v", "kind"}}
