"""``testbed bench agreement``: the same scenarios on real links and in virtual time, calibrated on
one half of the runs and judged on the other. Every stage is kept on disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, product
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from testbed.bench.results import (
    ResultCheck,
    Row,
    Say,
    Suite,
    at_least,
    at_most,
    link,
    measurement,
    star,
    write_json,
    write_scenario,
)
from testbed.errors import ExperimentError, InputError, Interrupted, NarrowsError
from testbed.fabric.sim.network import COSTS, Costs
from testbed.records.manifest import machine_facts
from testbed.records.run_directory import read_events
from testbed.records.stored import by_number
from testbed.runner.experiment import prepare
from testbed.runner.run import ParallelTask, side_by_side
from testbed.runner.run import run as run_experiment
from testbed.runner.signals import interruptible
from testbed.traces.generate import random_walk, write_csv

WORKERS = (4, 8, 16)
RATES = (50, 100, 200)
"""Rates of the server's link, Mbit/s."""
ALGORITHMS = ("none", "topk-0.01", "adatopk")
TRACE = "walk-{rate}.csv"
_PACE_MS = 150


@dataclass(frozen=True, slots=True, order=True)
class AgreementCell:
    """One scenario."""

    condition: str
    workers: int
    rate: int

    @property
    def name(self) -> str:
        """As scenario and file are called."""
        return f"{self.condition}-{self.workers}-{self.rate}"

    @property
    def calibrates(self) -> bool:
        """Return whether it is of the half that constants are found on; the other half judges.

        Alternately along every axis, so that both halves have some of everything.
        """
        parity = CONDITION_NAMES.index(self.condition) + self.workers.bit_length()
        return (parity + RATES.index(self.rate) if self.rate in RATES else parity) % 2 == 0

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)


def cells(
    conditions: Sequence[str] = (), workers: Sequence[int] = (), rates: Sequence[int] = ()
) -> Iterator[AgreementCell]:
    """All, or those of the values given."""
    for cell in product(conditions or CONDITION_NAMES, workers or WORKERS, rates or RATES):
        yield AgreementCell(*cell)


def scenario(cell: AgreementCell, steps: int) -> dict[str, Any]:
    """A parameter server and ``cell.workers`` workers on links of ``cell.rate``, and what happens
    to them."""
    train = {
        "task": "digits",
        "model": "cnn",
        "batch": 32,
        "optimizer": {"name": "sgd", "lr": 0.1},
        "pace": f"{_PACE_MS} ms",
        "stop": {"steps": steps},
        "evaluate_every": steps,
    }
    links = {"default": link(f"{cell.rate} Mbit/s")}
    plain = star(cell.name, cell.workers, train, links=links, algorithms=list(ALGORITHMS))
    return {**plain, **_CONDITIONS[cell.condition](cell)}


def _static(_: AgreementCell) -> dict[str, Any]:
    return {}


def _trace(cell: AgreementCell) -> dict[str, Any]:
    """The server's link moves between half its rate and all of it, every 500 ms."""
    file = TRACE.format(rate=cell.rate)
    return {"events": [{"kind": "trace", "links": ["server"], "file": file, "at_end": "loop"}]}


def _incast(cell: AgreementCell) -> dict[str, Any]:
    """Workers four times as fast as the server, whose queue is short."""
    fast, short = link(f"{4 * cell.rate} Mbit/s"), link(f"{cell.rate} Mbit/s", "20 ms")
    return {"links": {"default": fast, "server": short}}


def _cross(cell: AgreementCell) -> dict[str, Any]:
    """Another host fills the server's downlink every other second."""
    nodes = scenario(AgreementCell("static", cell.workers, cell.rate), 1)["nodes"]
    flow = {"name": "bulk", "from": "noise", "to": "server", "kind": "tcp"}
    return {
        "nodes": {**nodes, "noise": {"role": "host"}},
        "traffic": [{**flow, "on": "1 s", "off": "1 s"}],
    }


def _outage(_: AgreementCell) -> dict[str, Any]:
    """The server is away for 300 ms every two seconds."""
    flap = {"kind": "flap", "links": ["server"], "at": "1 s", "for": "300 ms"}
    return {"events": [{**flap, "every": "2 s", "times": 100}]}


_CONDITIONS = {
    "static": _static,
    "trace": _trace,
    "incast": _incast,
    "cross": _cross,
    "outage": _outage,
}
CONDITION_NAMES = tuple(_CONDITIONS)


NEAR, FAR, SHARE = 0.05, 0.10, 0.9
"""So many of the runs are to be within ``NEAR``, and all within ``FAR``."""
_NORMAL_95 = 1.96

Lengths = Mapping[AgreementCell, Mapping[str, Sequence[float]]]
"""Seconds of every step but the first, by cell and algorithm."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One algorithm in one cell: mean seconds of a step, measured (with the 95 % half width) and
    simulated."""

    cell: AgreementCell
    algorithm: str
    measured_s: float
    half_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Simulated over measured, less one."""
        return self.simulated_s / self.measured_s - 1

    def row(self) -> Row:
        """For the table."""
        return {
            **self.cell.to_json(),
            "algorithm": self.algorithm,
            "measured_s": self.measured_s,
            "half_s": self.half_s,
            "simulated_s": self.simulated_s,
            "error": self.error,
            "judged": not self.cell.calibrates,
        }


def pairs(measured: Lengths, simulated: Lengths) -> list[Pair]:
    """All runs that are in both."""
    both = []
    for cell, by_algorithm in measured.items():
        for algorithm, lengths in by_algorithm.items():
            if algorithm in simulated.get(cell, {}):
                half = _NORMAL_95 * stdev(lengths) / len(lengths) ** 0.5 if lengths[1:] else 0.0
                simulated_s = fmean(simulated[cell][algorithm])
                both.append(Pair(cell, algorithm, fmean(lengths), half, simulated_s))
    return both


def misfit(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Return what calibration makes small: the share of runs further off than ``NEAR``, then the
    root mean square."""
    far = fmean(abs(pair.error) > NEAR for pair in pairs)
    return far, fmean(pair.error**2 for pair in pairs) ** 0.5


def verdict(pairs: Sequence[Pair], about: Mapping[str, Any]) -> Suite:
    """The half that judges, against its limits; all runs are rows."""
    judged = [pair for pair in pairs if not pair.cell.calibrates]
    return Suite(
        title="Mean step time in virtual time against real links",
        rows=[pair.row() for pair in pairs],
        checks=list(_checks(judged)),
        about={**about, "runs": len(pairs), "judged": len(judged)},
        absent=[f"{cell}: {why}" for cell, why in about.get("failed", {}).items()],
    )


def _checks(judged: Sequence[Pair]) -> Iterator[ResultCheck]:
    errors = [abs(pair.error) for pair in judged]
    near = fmean(error <= NEAR for error in errors) if errors else None
    yield at_least(f"share of runs within {NEAR:.0%}", near, SHARE)
    yield at_most("worst error", max(errors, default=None), FAR)
    yield at_most("median error", median(errors) if errors else None, NEAR)
    yield at_most("algorithms ranked otherwise where intervals are disjoint", _misranked(judged), 0)


def _misranked(judged: Sequence[Pair]) -> int:
    wrong = 0
    for first, other in combinations(judged, 2):
        apart = abs(first.measured_s - other.measured_s) > first.half_s + other.half_s
        if first.cell == other.cell and apart:
            order = first.measured_s - other.measured_s
            wrong += order * (first.simulated_s - other.simulated_s) <= 0
    return wrong


MeasureLengths = dict[str, list[float]]


def write(
    folder: Path, cells: Iterable[AgreementCell], steps: int, algorithms: Sequence[str]
) -> dict[AgreementCell, Path]:
    """The scenarios as files, with the traces that they name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[AgreementCell, Path] = {}
    for cell in cells:
        trace = random_walk(
            low=cell.rate / 2,
            high=cell.rate,
            deviation=cell.rate / 10,
            seconds=60,
            every_s=0.5,
            seed=1,
        )
        (folder / TRACE.format(rate=cell.rate)).write_text(write_csv(trace), encoding="utf-8")
        content = {**scenario(cell, steps), "algorithms": list(algorithms)}
        paths[cell] = write_scenario(folder, cell.name, content)
    return paths


def measured(path: Path, out: Path) -> tuple[MeasureLengths, dict[str, str]]:
    """Step times on real links, and verdicts, by algorithm."""
    done = run_experiment(prepare(path), "netns", out, quiet=True)
    lengths = {entry["algorithm"]: step_lengths(Path(entry["dir"])) for entry in done.runs}
    return lengths, {entry["algorithm"]: entry["verdict"] for entry in done.runs}


def simulated(
    paths: Mapping[AgreementCell, Path],
    out: Path,
    costs: Costs,
    processes: int,
    say: Say,
) -> dict[AgreementCell, MeasureLengths]:
    """Step times in virtual time with those ``costs``."""
    listed = [
        (cell, ParallelTask(path, algorithm.name, seed, costs))
        for cell, path in paths.items()
        for experiment in [prepare(path)]
        for algorithm in experiment.algorithms
        for seed in experiment.seeds
    ]
    lengths_of: dict[AgreementCell, MeasureLengths] = {}
    for done in side_by_side([task for _, task in listed], out, processes):
        lengths = step_lengths(Path(done.entry["dir"]))
        lengths_of.setdefault(listed[done.position][0], {})[done.entry["algorithm"]] = lengths
        say(f"simulated {sum(map(len, lengths_of.values()))} of {len(listed)}")
    return lengths_of


def step_lengths(directory: Path) -> list[float]:
    """Seconds of every step but the first, each as the mean over workers. Raises ExperimentError if
    there are none."""
    steps = [own for (own,) in by_number(read_events(directory).get("step", []))]
    lengths = [
        sum(float(record["end_s"]) - float(record["start_s"]) for record in own) / len(own)
        for own in steps
        if int(own[0]["step"]) > 1
    ]
    if not lengths:
        raise ExperimentError(f"{directory} has no steps")
    return lengths


def to_json(
    lengths_of: Mapping[AgreementCell, Mapping[str, Sequence[float]]],
) -> list[dict[str, Any]]:
    """Lengths as plain objects."""
    return [
        {**cell.to_json(), "algorithm": algorithm, "step_s": list(lengths)}
        for cell, by_algorithm in lengths_of.items()
        for algorithm, lengths in by_algorithm.items()
    ]


def from_json(rows: Iterable[Mapping[str, Any]]) -> dict[AgreementCell, MeasureLengths]:
    """Read what ``to_json`` wrote."""
    lengths_of: dict[AgreementCell, MeasureLengths] = {}
    for row in rows:
        cell = AgreementCell(row["condition"], row["workers"], row["rate"])
        lengths_of.setdefault(cell, {})[row["algorithm"]] = list(row["step_s"])
    return lengths_of


MEASURED, RESULT = "measured.json", "agreement.json"
_SEND_S, _RECEIVE_S = (400e-6, 600e-6, 800e-6), (800e-6, 1000e-6)
"""Values that are tried for the constants."""


def run(
    cells: Sequence[AgreementCell],
    out: Path,
    say: Say,
    *,
    steps: int,
    algorithms: Sequence[str] = ALGORITHMS,
    again: Path | None = None,
    calibrate: bool = False,
    processes: int = 1,
) -> tuple[Path, Suite]:
    """The directory of the results, and what was found.

    ``again``: the directory of an earlier call, whose measurements are used instead of new ones,
    with its steps and algorithms.
    ``calibrate``: try other constants on one half of the runs, and judge with the best.
    """
    directory = again or measurement(out, "agreement")
    scenarios = directory / "scenarios"
    with interruptible():
        if again is None:
            paths = write(scenarios, cells, steps, algorithms)
            about: dict[str, Any] = {
                "steps": steps,
                "machine": machine_facts(),
                "verdicts": {},
                "failed": {},
            }
            real = _measure(paths, directory, say, about)
        else:
            real, about = _read(again / MEASURED)
            steps = int(about["steps"])
            algorithms = list(dict.fromkeys(name for of in real.values() for name in of))
            paths = write(scenarios, real, steps, algorithms)
        costs = _calibrated(paths, real, directory, processes, say) if calibrate else COSTS
        virtual = simulated(
            {cell: paths[cell] for cell in real}, directory / "virtual", costs, processes, say
        )
    suite = verdict(pairs(real, virtual), {**about, "costs": asdict(costs)})
    write_json(directory / RESULT, suite.to_json())
    return directory, suite


def _measure(
    paths: dict[AgreementCell, Path], directory: Path, say: Say, about: dict[str, Any]
) -> Lengths:
    """All cells on real links; what was measured is written after each. A cell that fails is named,
    and left out."""
    lengths_of: dict[AgreementCell, MeasureLengths] = {}
    for number, (cell, path) in enumerate(paths.items(), 1):
        say(f"measuring {cell.name}, {number} of {len(paths)}")
        try:
            lengths_of[cell], about["verdicts"][cell.name] = measured(path, directory / "real")
        except Interrupted:
            raise
        except NarrowsError as error:
            about["failed"][cell.name] = str(error)
            say(f"{cell.name} failed: {error}")
        stored = {**about, "runs": to_json(lengths_of)}
        write_json(directory / MEASURED, stored)
    return lengths_of


def _read(path: Path) -> tuple[Lengths, dict[str, Any]]:
    try:
        stored = json.loads(path.read_text())
        runs = stored.pop("runs")
        return from_json(runs), stored
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"these are no measurements: {error}", where=str(path)) from error


def _calibrated(
    paths: dict[AgreementCell, Path], real: Lengths, directory: Path, processes: int, say: Say
) -> Costs:
    """The constants of the least misfit on the half that calibrates."""
    half = {cell: paths[cell] for cell in real if cell.calibrates}
    if not half:
        raise InputError(
            "no run calibrates", where="--calibrate", hint="Ask for more of the matrix"
        )
    tried: dict[Costs, tuple[float, float]] = {}
    for costs in (Costs(*each) for each in product(_SEND_S, _RECEIVE_S)):
        virtual = simulated(half, directory / "virtual", costs, processes, lambda _: None)
        tried[costs] = misfit(pairs({cell: real[cell] for cell in half}, virtual))
        far, square = tried[costs]
        say(
            f"{costs.send_s * 1e6:g} µs, {costs.receive_s * 1e6:g} µs: {far:.1%} too far off, "
            f"{square:.2%} root mean square"
        )
    return min(tried, key=lambda costs: tried[costs])
