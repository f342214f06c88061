"""Whether a run may be believed: measures against one table of thresholds, each with its reason.

Pure. Within a threshold a measure is *valid*, up to ``degraded_factor`` times it *degraded*, beyond it
*invalid*; a run is as good as its worst measure. What could not be measured is said, and counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from testbed.record.measures import Evidence, Finding, State, findings
from testbed.record.thresholds import THRESHOLDS, Thresholds

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
    """Find the verdict. Reasons come worst first; ``measures`` holds the worst place of each measure."""
    found = findings(evidence, thresholds)
    states = [finding.state(thresholds.degraded_factor) for finding in found]
    judged = sorted(zip(found, states, strict=True), key=lambda pair: -_ORDER.index(pair[1]))
    measures = _measures(found, thresholds.degraded_factor)
    if evidence.completion is not None:
        measures["completion"] = dict(evidence.completion)
    return Verdict(
        state=max(states, key=_ORDER.index, default="valid"),
        reasons=[finding.sentence for finding, state in judged if state != "valid"],
        measures=measures,
    )


def judge_filled(evidence: Evidence, thresholds: Thresholds = THRESHOLDS) -> Verdict:
    """The verdict on links that were to be filled, as a replay does: what was too seldom full is said at the end.

    The state is that of ``judge``: what was not measured is no fault, but whoever reads the result must know.
    """
    verdict = judge(evidence, thresholds)
    unjudged = [
        f"not judged: {finding.sentence}"
        for finding in findings(evidence, thresholds)
        if finding.measure == "link_ratio" and finding.deviation is None
    ]
    return replace(verdict, reasons=[*verdict.reasons, *unjudged])


def _measures(found: list[Finding], factor: float) -> dict[str, Any]:
    measures: dict[str, Any] = {}
    for name in dict.fromkeys(finding.measure for finding in found):
        same = [finding for finding in found if finding.measure == name]
        measured = [finding for finding in same if finding.deviation is not None]
        if not measured:
            measures[name] = f"not measured: {same[0].sentence}"
            continue
        worst = max(measured, key=lambda finding: finding.deviation or 0.0)
        measures[name] = {
            "deviation": worst.deviation, "limit": worst.limit, "state": worst.state(factor),
            "place": worst.place, "judged": len(measured), "not_judged": len(same) - len(measured),
        }  # fmt: skip
    return measures
