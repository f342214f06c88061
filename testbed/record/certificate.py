"""The fidelity certificate of a run: one object that says how far its links were what was asked. Pure.

Every field is explained in docs/certificate.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from testbed.record.events import Disturbed
from testbed.record.evidence import Evidence, NodesSeen, PathSeen
from testbed.record.followed import Followed
from testbed.record.host import Host
from testbed.record.loss import LossSeen
from testbed.record.thresholds import THRESHOLDS, Thresholds
from testbed.record.verdict import Verdict

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
_QUEUE = ("largest_backlog_bytes", "excess_share", "drops", "direct_packets", "gso_max_segs")
_WATCH = ("unwatched_s", "realtime", "failure", "mismatches")


def certificate(
    evidence: Evidence,
    verdict: Verdict,
    host: Host,
    disturbed: Sequence[Disturbed],
    *,
    dilation: float,
    processors: int,
    not_replayed: Sequence[str] = (),
    thresholds: Thresholds = THRESHOLDS,
) -> dict[str, Any]:
    """The object that becomes ``certificate.json``. All times are wall time.

    ``not_replayed``: what the scenario asks for and a replay leaves out.
    """
    return {
        "format": FORMAT,
        "verdict": verdict.state,
        "reasons": verdict.reasons,
        "seconds": evidence.seconds,
        "dilation": dilation,
        "not_replayed": list(not_replayed),
        "links": [_link(link, evidence) for link in evidence.links],
        "ways": [_way(path) for path in evidence.paths],
        "nodes": None if evidence.nodes is None else _nodes(evidence.nodes),
        "completion": None if evidence.completion is None else dict(evidence.completion),
        "host": {
            "processors": processors,
            **host.summary(),
            "stolen_share": evidence.stolen_share,
            "starved": None if evidence.starved is None else asdict(evidence.starved),
            "foreign_drops": None
            if evidence.foreign_drops is None
            else dict(evidence.foreign_drops),
        },
        "disturbed": [_span(span) for span in disturbed],
        "measures": {
            name: found for name, found in verdict.measures.items() if name != "completion"
        },
        "thresholds": asdict(thresholds),
    }


def _link(link: Mapping[str, Any], evidence: Evidence) -> dict[str, Any]:
    place = f"{link['link']} {link['direction']}"
    followed = None if evidence.followed is None else evidence.followed.get(place)
    return {
        **_some(link, _SAID),
        "per_second": {"mape": link.get("mape_1s"), "worst": link.get("worst_1s")},
        "per_step": {"mape": link.get("mape_step")},
        "busy": {name.removeprefix("busy_"): link.get(name) for name in _BUSY},
        "changes": _changes(link, followed, evidence.starts.get(place, ())),
        "queue": _some(link, _QUEUE),
        "outages": {
            "count": link.get("outages"),
            "bytes": link.get("outage_bytes"),
            "resume_ms": link.get("resume_ms"),
        },
        "line": _line(link, evidence.losses.get(place)),
        "watch": _some(link, _WATCH),
    }


def _some(link: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: link.get(name) for name in names}


def _changes(
    link: Mapping[str, Any], followed: Followed | None, starts: Sequence[str]
) -> dict[str, Any]:
    return {
        "expected": None if followed is None else followed.expected,
        "applied": link.get("changes"),
        "missing": None if followed is None else len(followed.missing),
        "faults": [*starts, *(() if followed is None else followed.faults)],
        "lateness_ms": link.get("lateness_ms"),
    }


def _line(link: Mapping[str, Any], seen: LossSeen | None) -> dict[str, Any] | None:
    """None where there is no delay line."""
    if link.get("line_packets") is None:
        return None
    asked = None if seen is None else asdict(seen)
    return {"packets": link["line_packets"], "refused": link.get("line_limit"), "loss": asked}


def _way(path: PathSeen) -> dict[str, Any]:
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


def _span(span: Disturbed) -> dict[str, Any]:
    return {name: value for name, value in span.to_json().items() if name not in {"v", "kind"}}
