"""``testbed bench control``: simulate, judge, play what the programme found. Every stage is kept on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from testbed.algorithms import resolve
from testbed.bench.response.curves import Curve, Rates, asked, read
from testbed.bench.response.judge import PLAYED, Bound, bound, bound_rows, rows, target
from testbed.bench.response.simulate import Runs, Say, simulate, write
from testbed.bench.response.waveforms import REFERENCES, STEPS, WAVEFORMS, Waveform
from testbed.bench.result import Suite
from testbed.control.base import controllers
from testbed.errors import InputError
from testbed.record.directory import fresh, read_json, to_json, write_atomically
from testbed.record.machine import machine
from testbed.session.interrupt import interruptible
from testbed.session.parallel import Task

RUNS, RESULT = "runs.json", "step_responses.json"
FIXED: Mapping[str, float] = {
    **{f"topk-{k}": k for k in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)},
    "none": 1.0,
}
"""Densities of the sweep, by algorithm."""
ALGORITHMS = (
    "adatopk", "adatopk-slope", "adatopk-perbyte", "dc2-da1", "dc2-da2", "dc2-da3", "dc2-da4", "dc2-da5",
    "adalag", "oracle", "aimd-delay", "aimd-bdp", "accordion", "topk-linear", "topk-exponential", "random-walk",
)  # fmt: skip
_PLAY = "programme"


class Found(NamedTuple):
    """All that is known of a call."""

    suite: Suite
    curves: dict[str, dict[str, Curve]]
    """By waveform and algorithm; references too."""
    bounds: dict[str, Bound]
    rates: dict[str, Rates]
    """What the server's link was asked to carry."""

    def to_json(self) -> dict[str, Any]:
        """The suite's object, with ``curves``, ``bounds`` and ``rates`` by waveform."""
        curves = {
            waveform: {name: curve.to_json() for name, curve in of.items()}
            for waveform, of in self.curves.items()
        }
        bounds = {name: each.to_json() for name, each in self.bounds.items()}
        return {**self.suite.to_json(), "curves": curves, "bounds": bounds, "rates": self.rates}


class Plan(NamedTuple):
    """What is asked for."""

    algorithms: Sequence[str]
    waveforms: Sequence[str]
    fixed: Mapping[str, float] = FIXED
    steps: int = STEPS
    seed: int = 1
    processes: int = 1


def run(
    plan: Plan, out: Path, say: Say, *, level: float | None = None, again: Path | None = None
) -> tuple[Path, Found]:
    """The directory of the results, and what was found.

    ``level``: the accuracy that times are taken at, whether all reach it or not (default: ``target``'s). ``again``: the directory of an
    earlier call, whose runs are judged instead of new ones.
    """
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}_control"
    directory = again or fresh(out / "measurements", stem)
    with interruptible():
        if again is None:
            runs = _simulate(plan, directory, say)
        else:
            plan, runs = _read(again / RUNS)
        curves = {key: {n: read(path) for n, path in of.items()} for key, of in runs.items()}
        bounds = _bounds(plan, curves, level)
        for name, played in _play(plan, bounds, directory, say).items():
            curves[name][PLAYED] = read(played)
    rates = {name: asked(max(runs[name].values(), key=_size)) for name in plan.waveforms}
    found = Found(_suite(plan, curves, bounds), curves, bounds, rates)
    write_atomically(directory / RESULT, to_json(found.to_json()) + "\n")
    return directory, found


def _simulate(plan: Plan, directory: Path, say: Say) -> Runs:
    chosen = [WAVEFORMS[name] for name in plan.waveforms]
    still = dict.fromkeys(each.reference for each in chosen if each.settles)
    asked_of: list[tuple[Waveform, Sequence[str]]] = [
        *((each, [*plan.fixed, *plan.algorithms]) for each in chosen),
        *((REFERENCES[name], plan.algorithms) for name in still),
    ]
    tasks = []
    for waveform, names in asked_of:
        path = write(directory / "scenarios", waveform, plan.steps, names)
        tasks += [Task(path, name, plan.seed) for name in names]
    runs = simulate(tasks, directory / "virtual", plan.processes, say)
    told = {"plan": plan._asdict(), "runs": {k: _texts(of) for k, of in runs.items()}}
    write_atomically(directory / RUNS, to_json(told, indent=2) + "\n")
    return runs


def _texts(paths: Mapping[str, Path]) -> dict[str, str]:
    return {name: str(path) for name, path in paths.items()}


def _read(path: Path) -> tuple[Plan, Runs]:
    told = read_json(path)
    try:
        runs = {key: {n: Path(p) for n, p in of.items()} for key, of in told["runs"].items()}
        return Plan(**told["plan"]), runs
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"these are no runs: {error}", where=str(path)) from error


def _bounds(
    plan: Plan, curves: Mapping[str, Mapping[str, Curve]], level: float | None
) -> dict[str, Bound]:
    found = {
        name: bound(curves[name], plan.fixed, level or target(curves[name], plan.fixed))
        for name in plan.waveforms
    }
    return {name: each for name, each in found.items() if each is not None}


def _play(plan: Plan, bounds: Mapping[str, Bound], directory: Path, say: Say) -> dict[str, Path]:
    """The programmes' schedules as runs, by waveform."""
    if "script" not in controllers:
        return {}
    tasks = []
    for name, each in bounds.items():
        script = {"rule": "script", "controller": {"densities": each.plan.densities}}
        entry = {"name": _PLAY, "from": "topk-0.01", **script}
        path = write(directory / "scenarios" / "played", WAVEFORMS[name], plan.steps, [entry])
        tasks.append(Task(path, _PLAY, plan.seed))
    done = simulate(tasks, directory / "virtual", plan.processes, say)
    return {name: of[_PLAY] for name, of in done.items()}


def _suite(
    plan: Plan, curves: Mapping[str, Mapping[str, Curve]], bounds: Mapping[str, Bound]
) -> Suite:
    found: list[dict[str, Any]] = []
    for name in plan.waveforms:
        waveform, best = WAVEFORMS[name], bounds.get(name)
        references = curves.get(waveform.reference, {})
        found += rows(waveform, plan.algorithms, curves[name], references, best)
        found += bound_rows(name, best, curves[name].get(PLAYED)) if best else []
    about = {"seed": plan.seed, "steps": plan.steps, "machine": machine()}
    return Suite("Controllers when the server's link changes, in virtual time", found, [], about)


def _size(directory: Path) -> float:
    """How long the run lasted, s."""
    return float(read_json(directory / "summary.json")["time_s"])


def known(names: Sequence[str]) -> list[str]:
    """Those of ``names`` that this installation has."""
    found = []
    for name in names:
        try:
            found.append(resolve(name).name)
        except InputError:
            continue
    return found
