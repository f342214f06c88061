"""A job's steps as they are drawn: plain arrays in model time."""

from __future__ import annotations

import numpy as np

from analysis.load import Array, Run
from testbed.record.job_steps import JobStep


def timed(run: Run) -> list[JobStep]:
    """Those of its steps of which both ends are known."""
    return [step for step in run.known.steps if step.start_s is not None]


def edges(run: Run) -> Array:
    """When its timed steps begin, and when the last one ends: shape (n + 1,); empty without any."""
    steps = timed(run)
    if not steps:
        return np.zeros(0)
    return np.array([steps[0].start_s, *(step.end_s for step in steps)]) / run.dilation


def lengths(run: Run) -> Array:
    """Seconds of each of them, shape (n,)."""
    found: Array = np.diff(edges(run))
    return found


def shares(run: Run) -> Array:
    """In what share of each of them the busiest link was busy, shape (n,); not a number where that is not known."""
    found = [run.traffic.share(step.start_s or 0.0, step.end_s) for step in timed(run)]
    return np.array([np.nan if share is None else share for share in found])


def phases_s(run: Run) -> dict[str, float]:
    """Mean seconds of every phase that was marked, and what was in none; empty where no phases were marked."""
    steps = timed(run)
    names = list(dict.fromkeys(name for step in steps for name in step.phases_s))
    if not names:
        return {}
    means = {
        name: float(np.mean([step.phases_s.get(name, 0.0) for step in steps])) / run.dilation
        for name in names
    }
    return {**means, NO_PHASE: max(0.0, float(lengths(run).mean()) - sum(means.values()))}


NO_PHASE = "(in no phase)"
