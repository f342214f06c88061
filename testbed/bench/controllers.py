"""``testbed bench control``: when and how far controllers answer a change of their link, and how
far they stay behind the best fixed density and a dynamic programme. docs/how-to/step-responses.md
defines every figure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from testbed.bench.results import Say, Suite, measurement, write_json
from testbed.bench.waveforms import (
    CHANGE_S,
    REFERENCES,
    STEPS,
    WAVEFORMS,
    Demand,
    ProgrammePlan,
    RunClock,
    Runs,
    Waveform,
    earliest,
    fit,
    simulate,
    write,
)
from testbed.compatibility import resolve
from testbed.control.base import controllers
from testbed.errors import ExperimentError, InputError
from testbed.records.manifest import machine_facts
from testbed.records.run_directory import (
    LINKS,
    read_events,
    read_json,
    read_jsonl,
    to_json,
    write_atomically,
)
from testbed.records.stored import by_number
from testbed.runner.run import ParallelTask
from testbed.runner.signals import interruptible

Rates = list[tuple[float, float]]
"""From when (s) which rate (bit/s) was asked for."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One run. Means over workers; step i of the lists is the run's step i + 1."""

    start_s: Sequence[float]
    end_s: Sequence[float]
    density: Sequence[float]
    """k: requested."""
    evaluated: Sequence[tuple[float, float, float]]
    """Step, time (s) and test accuracy of every evaluation."""

    @property
    def mean_k(self) -> float:
        """Over all steps."""
        return fmean(self.density)

    def reached(self, level: float) -> tuple[float, float] | None:
        """Step and time (s) at which accuracy comes to ``level``, on straight lines between
        evaluations; or None."""
        before: tuple[float, float, float] | None = None
        for step, time_s, accuracy in self.evaluated:
            if accuracy >= level:
                if before is None:
                    return step, time_s
                share = (level - before[2]) / (accuracy - before[2])
                return before[0] + share * (step - before[0]), before[1] + share * (
                    time_s - before[1]
                )
            before = step, time_s, accuracy
        return None

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)


def read(directory: Path) -> Curve:
    """From a run's records. Raises ExperimentError where there are no steps."""
    events = read_events(directory)
    steps = [own for (own,) in by_number(events.get("step", []))]
    if not steps:
        raise ExperimentError(f"{directory} has no steps")
    start, end, density = (
        [fmean(float(record[key]) for record in records) for records in steps]
        for key in ("start_s", "end_s", "density")
    )
    evaluations = sorted(
        (float(record["step"]), float(record["time_s"]), float(record["accuracy"]))
        for record in events.get("evaluation", [])
    )
    return Curve(start, end, density, evaluations)


def requested_rates(directory: Path) -> Rates:
    """Return the rates that the server's downlink was asked to carry: one entry for each change."""
    rates: Rates = []
    for from_s, to_s, bits in _samples(read_jsonl(directory / LINKS)):
        rate = round(bits / (to_s - from_s))
        if not rates or abs(rate - rates[-1][1]) > 1e-3 * rates[-1][1]:
            rates.append((from_s, float(rate)))
    return rates


def _samples(records: Iterable[Mapping[str, Any]]) -> list[tuple[float, float, float]]:
    return sorted(
        (float(record["from_s"]), float(record["to_s"]), float(record["asked_bits"]))
        for record in records
        if record["kind"] == "sample"
        and (record["link"], record["direction"]) == ("server", "down")
        and record["to_s"] > record["from_s"]
    )


WINDOW, NEAR, LEAST, BEFORE = 5, 0.2, 0.1, 10
"""Steps of the moving median; share of the way that counts as arrived; least relative change that
counts as an answer; steps before the change that make the level of before."""


@dataclass(frozen=True, slots=True)
class Response:
    """Answer of a run to a change."""

    responds: bool
    response_s: float | None
    """None: it does not respond, or has not settled by the end."""
    overshoot: float | None
    """Share of the way."""
    factor: float
    """k after settling over what it would have been."""


def response(curve: Curve, reference: Curve, change_s: float) -> Response | None:
    """The answer of ``curve`` to what happened at ``change_s``; ``reference``: the same run without
    the change.

    None where no step was begun before or fewer than four after.
    """
    count = min(len(curve.density), len(reference.density))
    away = [log(curve.density[i] / reference.density[i]) for i in range(count)]
    first = next((i for i in range(count) if curve.start_s[i] >= change_s), count)
    if first == 0 or count - first < 4:
        return None
    was = median(away[max(0, first - BEFORE) : first])
    settled = median(away[count - (count - first) // 4 :])
    shift, smooth = settled - was, moving_median(away)[first:]
    if abs(shift) < log(1 + LEAST):
        return Response(False, None, None, exp(shift))
    after = arrival([abs(value - settled) <= NEAR * abs(shift) for value in smooth])
    time_s = None if after is None else curve.start_s[first + after] - change_s
    return Response(True, time_s, overshoot(smooth, was, settled), exp(shift))


def moving_median(values: Sequence[float]) -> list[float]:
    """Return the median of each value and the two before and after it, as far as there are any."""
    half = WINDOW // 2
    return [median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def arrival(near: Sequence[bool]) -> int | None:
    """The place from which on all are true; None where the last is not."""
    last = max((i for i, each in enumerate(near) if not each), default=-1)
    return last + 1 if last + 1 < len(near) else None


def overshoot(values: Sequence[float], was: float, settled: float) -> float:
    """The largest excursion beyond ``settled`` as a share of the way to it; 0 where there is
    none."""
    return max(0.0, *((value - settled) / (settled - was) for value in values))


LEVELS = (0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
FEWEST = 2
"""Fixed densities that must reach a target: N(k) has two constants."""
PROGRAMME, PLAYED = "(programme)", "(programme, played)"
"""As the bound and its schedule are called among algorithms."""

Curves = Mapping[str, Curve]
"""Curves on one waveform, by algorithm."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Best that could have been done on one waveform. Times in s."""

    target: float
    fixed_s: Mapping[str, float]
    """Time to the target of every fixed density that reaches it."""
    demand: Demand
    plan: ProgrammePlan

    @property
    def best(self) -> str:
        """The fixed density that is there first."""
        return min(self.fixed_s, key=lambda name: self.fixed_s[name])

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {**asdict(self), "plan": self.plan._asdict(), "best": self.best}


def target(curves: Curves, fixed: Container[str]) -> float | None:
    """The highest level that every controller and ``FEWEST`` of ``fixed`` reach; None where there
    is none."""

    def common(level: float) -> bool:
        arrived = {name for name, curve in curves.items() if curve.reached(level) is not None}
        missing = [name for name in curves if name not in arrived and name not in fixed]
        return not missing and sum(name in fixed for name in arrived) >= FEWEST

    return next((level for level in LEVELS if common(level)), None)


def bound(curves: Curves, fixed: Mapping[str, float], level: float | None) -> Bound | None:
    """The best that could have been done; None without a level that ``FEWEST`` of ``fixed`` (k by
    name) reach.

    All of ``fixed`` are the programme's to choose from, those too whose runs end before they get
    there.
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


def _row(
    waveform: Waveform, name: str, curve: Curve, reference: Curve | None, best: Bound | None
) -> dict[str, Any]:
    """An algorithm on a waveform; ``reference``: the same without the change."""
    settles = waveform.settles and reference is not None
    answer = response(curve, reference, CHANGE_S) if settles and reference else None
    return {
        "algorithm": name,
        "waveform": waveform.name,
        "response_s": answer and answer.response_s,
        "responds": answer and answer.responds,
        "factor": answer and answer.factor,
        "overshoot": answer and answer.overshoot,
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
        "mean_k": fmean(plan.densities),
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


RUNS, RESULT = "runs.json", "step_responses.json"
FIXED: Mapping[str, float] = {
    **{f"topk-{k}": k for k in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)},
    "none": 1.0,
}
"""Densities of the sweep, by algorithm."""
ALGORITHMS = (
    "adatopk",
    "adatopk-slope",
    "adatopk-perbyte",
    "dc2-da1",
    "dc2-da2",
    "dc2-da3",
    "dc2-da4",
    "dc2-da5",
    "adalag",
    "oracle",
    "aimd-delay",
    "aimd-bdp",
    "accordion",
    "topk-linear",
    "topk-exponential",
    "random-walk",
)
_PLAY = "programme"


class ResponseResult(NamedTuple):
    """All that is known of a call."""

    suite: Suite
    curves: dict[str, dict[str, Curve]]
    """Curves by waveform and algorithm; references too."""
    bounds: dict[str, Bound]
    rates: dict[str, Rates]
    """Rates that the server's link was asked to carry, by waveform."""

    def to_json(self) -> dict[str, Any]:
        """The suite's object, with ``curves``, ``bounds`` and ``rates`` by waveform."""
        curves = {
            waveform: {name: curve.to_json() for name, curve in of.items()}
            for waveform, of in self.curves.items()
        }
        bounds = {name: each.to_json() for name, each in self.bounds.items()}
        return {**self.suite.to_json(), "curves": curves, "bounds": bounds, "rates": self.rates}


class ResponsePlan(NamedTuple):
    """Request for a measurement."""

    algorithms: Sequence[str]
    waveforms: Sequence[str]
    fixed: Mapping[str, float] = FIXED
    steps: int = STEPS
    seed: int = 1
    processes: int = 1


def run(
    plan: ResponsePlan,
    out: Path,
    say: Say,
    *,
    level: float | None = None,
    again: Path | None = None,
) -> tuple[Path, ResponseResult]:
    """The directory of the results, and what was found.

    ``level``: the accuracy that times are taken at, whether all reach it or not (default:
    ``target``'s). ``again``: the directory of an earlier call, whose runs are judged instead of new
    ones.
    """
    directory = again or measurement(out, "control")
    with interruptible():
        if again is None:
            runs = _simulate(plan, directory, say)
        else:
            plan, runs = _read(again / RUNS)
        curves = {key: {n: read(path) for n, path in of.items()} for key, of in runs.items()}
        bounds = _bounds(plan, curves, level)
        for name, played in _play(plan, bounds, directory, say).items():
            curves[name][PLAYED] = read(played)
    rates = {name: requested_rates(max(runs[name].values(), key=_size)) for name in plan.waveforms}
    result = ResponseResult(_suite(plan, curves, bounds), curves, bounds, rates)
    write_atomically(directory / RESULT, to_json(result.to_json()) + "\n")
    return directory, result


def _simulate(plan: ResponsePlan, directory: Path, say: Say) -> Runs:
    chosen = [WAVEFORMS[name] for name in plan.waveforms]
    still = dict.fromkeys(each.reference for each in chosen if each.settles)
    asked_of: list[tuple[Waveform, Sequence[str]]] = [
        *((each, [*plan.fixed, *plan.algorithms]) for each in chosen),
        *((REFERENCES[name], plan.algorithms) for name in still),
    ]
    tasks = []
    for waveform, names in asked_of:
        path = write(directory / "scenarios", waveform, plan.steps, names)
        tasks += [ParallelTask(path, name, plan.seed) for name in names]
    runs = simulate(tasks, directory / "virtual", plan.processes, say)
    paths = {key: {name: str(path) for name, path in of.items()} for key, of in runs.items()}
    stored = {"plan": plan._asdict(), "runs": paths}
    write_json(directory / RUNS, stored)
    return runs


def _read(path: Path) -> tuple[ResponsePlan, Runs]:
    stored = read_json(path)
    try:
        runs = {key: {n: Path(p) for n, p in of.items()} for key, of in stored["runs"].items()}
        return ResponsePlan(**stored["plan"]), runs
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"these are no runs: {error}", where=str(path)) from error


def _bounds(
    plan: ResponsePlan, curves: Mapping[str, Mapping[str, Curve]], level: float | None
) -> dict[str, Bound]:
    bounds = {
        name: bound(curves[name], plan.fixed, level or target(curves[name], plan.fixed))
        for name in plan.waveforms
    }
    return {name: each for name, each in bounds.items() if each is not None}


def _play(
    plan: ResponsePlan, bounds: Mapping[str, Bound], directory: Path, say: Say
) -> dict[str, Path]:
    """The programmes' schedules as runs, by waveform."""
    if "script" not in controllers:
        return {}
    tasks = []
    for name, each in bounds.items():
        script = {"rule": "script", "controller": {"densities": each.plan.densities}}
        entry = {"name": _PLAY, "from": "topk-0.01", **script}
        path = write(directory / "scenarios" / "played", WAVEFORMS[name], plan.steps, [entry])
        tasks.append(ParallelTask(path, _PLAY, plan.seed))
    done = simulate(tasks, directory / "virtual", plan.processes, say)
    return {name: of[_PLAY] for name, of in done.items()}


def _suite(
    plan: ResponsePlan, curves: Mapping[str, Mapping[str, Curve]], bounds: Mapping[str, Bound]
) -> Suite:
    table: list[dict[str, Any]] = []
    for name in plan.waveforms:
        waveform, best = WAVEFORMS[name], bounds.get(name)
        references = curves.get(waveform.reference, {})
        table += [
            _row(waveform, algorithm, curves[name][algorithm], references.get(algorithm), best)
            for algorithm in plan.algorithms
        ]
        table += bound_rows(name, best, curves[name].get(PLAYED)) if best else []
    about = {"seed": plan.seed, "steps": plan.steps, "machine": machine_facts()}
    return Suite("Controllers when the server's link changes, in virtual time", table, [], about)


def _size(directory: Path) -> float:
    """How long the run lasted, s."""
    return float(read_json(directory / "summary.json")["time_s"])


def known(names: Sequence[str]) -> list[str]:
    """Those of ``names`` that this installation has."""
    installed = []
    for name in names:
        try:
            installed.append(resolve(name).name)
        except InputError:
            continue
    return installed
