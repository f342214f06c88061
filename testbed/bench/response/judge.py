"""What the runs say: targets, the best fixed density, the programme, and a row for every controller. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from testbed.bench.response.curves import Curve
from testbed.bench.response.programme import Demand, Plan, RunClock, earliest, fit
from testbed.bench.response.settle import response
from testbed.bench.response.waveforms import CHANGE_S, Waveform

LEVELS = (0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
FEWEST = 2
"""Fixed densities that must reach a target: N(k) has two constants."""
PROGRAMME, PLAYED = "(programme)", "(programme, played)"
"""As the bound and its schedule are called among algorithms."""

Curves = Mapping[str, Curve]
"""By algorithm, on one waveform."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What could have been done on one waveform. Times in s."""

    target: float
    fixed_s: Mapping[str, float]
    """Time to the target of every fixed density that reaches it."""
    demand: Demand
    plan: Plan

    @property
    def best(self) -> str:
        """The fixed density that is there first."""
        return min(self.fixed_s, key=lambda name: self.fixed_s[name])

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {**asdict(self), "plan": self.plan._asdict(), "best": self.best}


def target(curves: Curves, fixed: Container[str]) -> float | None:
    """The highest level that every controller and ``FEWEST`` of ``fixed`` reach; None where there is none."""

    def common(level: float) -> bool:
        there = {name for name, curve in curves.items() if curve.reached(level) is not None}
        missing = [name for name in curves if name not in there and name not in fixed]
        return not missing and sum(name in fixed for name in there) >= FEWEST

    return next((level for level in LEVELS if common(level)), None)


def bound(curves: Curves, fixed: Mapping[str, float], level: float | None) -> Bound | None:
    """The best that could have been done; None without a level that ``FEWEST`` of ``fixed`` (k by name) reach.

    All of ``fixed`` are the programme's to choose from, those too whose runs end before they get there.
    """
    if level is None:
        return None
    reached = {name: at for name in fixed if (at := curves[name].reached(level)) is not None}
    if len(reached) < FEWEST:
        return None
    demand = fit({fixed[name]: step for name, (step, _) in reached.items()})
    clocks = {fixed[name]: RunClock(curves[name].start_s, curves[name].end_s) for name in fixed}
    plan = earliest({k: demand.steps(k) for k in clocks}, clocks)
    return Bound(level, {name: time_s for name, (_, time_s) in reached.items()}, demand, plan)


def rows(
    waveform: Waveform,
    names: Iterable[str],
    curves: Curves,
    references: Curves,
    best: Bound | None,
) -> list[dict[str, Any]]:
    """One for every algorithm of ``names``. ``references``: the same algorithms without the change."""
    return [_row(waveform, name, curves[name], references.get(name), best) for name in names]


def _row(
    waveform: Waveform, name: str, curve: Curve, reference: Curve | None, best: Bound | None
) -> dict[str, Any]:
    settles = waveform.settles and reference is not None
    seen = response(curve, reference, CHANGE_S) if settles and reference else None
    return {
        "algorithm": name,
        "waveform": waveform.name,
        "response_s": seen and seen.response_s,
        "responds": seen and seen.responds,
        "factor": seen and seen.factor,
        "overshoot": seen and seen.overshoot,
        "mean_k": curve.mean_k,
        **_regrets(curve, best),
    }


def _regrets(curve: Curve, best: Bound | None) -> dict[str, Any]:
    reached = None if best is None else curve.reached(best.target)
    time_s = None if reached is None else reached[1]
    known = best is not None and time_s is not None
    return {
        "target": best and best.target,
        "time_s": time_s,
        "regret_fixed": time_s / best.fixed_s[best.best] - 1 if known and best and time_s else None,
        "regret_programme": time_s / best.plan.time_s - 1 if known and best and time_s else None,
        "best_fixed": best and best.best,
    }


def bound_rows(waveform: str, best: Bound, played: Curve | None) -> list[dict[str, Any]]:
    """The programme's own time, and that of its schedule as a run."""
    plan = best.plan
    own = {
        "algorithm": PROGRAMME,
        "waveform": waveform,
        "mean_k": _mean(plan.densities),
        "target": best.target,
        "time_s": plan.time_s,
        "regret_fixed": plan.time_s / best.fixed_s[best.best] - 1,
        "regret_programme": 0.0,
        "best_fixed": best.best,
    }
    if played is None:
        return [own]
    row = {"algorithm": PLAYED, "waveform": waveform, "mean_k": played.mean_k}
    return [own, {**row, **_regrets(played, best)}]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
