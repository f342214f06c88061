"""Every measure of a run as findings: a figure, its limit and a sentence."""

from __future__ import annotations

from testbed.record.evidence import Evidence
from testbed.record.finding import Finding, State
from testbed.record.line_findings import line_findings
from testbed.record.link_findings import link_findings
from testbed.record.run_findings import run_findings
from testbed.record.thresholds import Thresholds

__all__ = ["Evidence", "Finding", "State", "findings"]


def findings(evidence: Evidence, limits: Thresholds) -> list[Finding]:
    """Every measure at every place."""
    return [
        *link_findings(evidence, limits),
        *line_findings(evidence, limits),
        *run_findings(evidence, limits),
    ]
