"""``testbed bench agreement``: measure, calibrate on one half, judge on the other. Every stage is kept on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from testbed.bench.agreement import measure
from testbed.bench.agreement.judge import Lengths, misfit, pairs, verdict
from testbed.bench.agreement.matrix import ALGORITHMS, Cell
from testbed.bench.result import Suite
from testbed.errors import InputError, Interrupted, NarrowsError
from testbed.fabric.sim.costs import COSTS
from testbed.fabric.sim.network import Costs
from testbed.record.directory import fresh, to_json, write_atomically
from testbed.record.machine import machine
from testbed.session.interrupt import interruptible

MEASURED, RESULT = "measured.json", "agreement.json"
_SEND_S, _RECEIVE_S = (400e-6, 600e-6, 800e-6), (800e-6, 1000e-6)
"""What is tried for the constants."""

Say = Callable[[str], None]


def run(
    cells: Sequence[Cell],
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

    ``again``: the directory of an earlier call, whose measurements are used instead of new ones. ``calibrate``: try
    other constants on one half of the runs, and judge with the best.
    """
    directory = again or fresh(
        out / "measurements", f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}_agreement"
    )
    scenarios = directory / "scenarios"
    with interruptible():
        if again is None:
            paths = measure.write(scenarios, cells, steps, algorithms)
            about: dict[str, Any] = {
                "steps": steps,
                "machine": machine(),
                "verdicts": {},
                "failed": {},
            }
            real = _measure(paths, directory, say, about)
        else:
            real, about = _read(again / MEASURED)
            steps = int(about["steps"])
            paths = measure.write(scenarios, real, steps, algorithms)
        costs = _calibrated(paths, real, directory, processes, say) if calibrate else COSTS
        virtual = measure.simulated(
            {cell: paths[cell] for cell in real}, directory / "virtual", costs, processes, say
        )
    found = verdict(pairs(real, virtual), {**about, "costs": asdict(costs)})
    write_atomically(directory / RESULT, to_json(found.to_json(), indent=2) + "\n")
    return directory, found


def _measure(paths: dict[Cell, Path], directory: Path, say: Say, about: dict[str, Any]) -> Lengths:
    """All cells on real links; what was measured is written after each. A cell that fails is named, and left out."""
    found: dict[Cell, measure.Lengths] = {}
    for number, (cell, path) in enumerate(paths.items(), 1):
        say(f"measuring {cell.name}, {number} of {len(paths)}")
        try:
            found[cell], about["verdicts"][cell.name] = measure.measured(path, directory / "real")
        except Interrupted:
            raise
        except NarrowsError as error:
            about["failed"][cell.name] = str(error)
            say(f"{cell.name} failed: {error}")
        told = {**about, "runs": measure.to_json(found)}
        write_atomically(directory / MEASURED, to_json(told, indent=2) + "\n")
    return found


def _read(path: Path) -> tuple[Lengths, dict[str, Any]]:
    try:
        told = json.loads(path.read_text())
        runs = told.pop("runs")
        return measure.from_json(runs), told
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"these are no measurements: {error}", where=str(path)) from error


def _calibrated(
    paths: dict[Cell, Path], real: Lengths, directory: Path, processes: int, say: Say
) -> Costs:
    """The constants of the least misfit on the half that calibrates."""
    half = {cell: paths[cell] for cell in real if cell.calibrates}
    if not half:
        raise InputError(
            "no run calibrates", where="--calibrate", hint="Ask for more of the matrix"
        )
    tried: dict[Costs, tuple[float, float]] = {}
    for costs in (Costs(*each) for each in product(_SEND_S, _RECEIVE_S)):
        there = measure.simulated(half, directory / "virtual", costs, processes, lambda _: None)
        tried[costs] = misfit(pairs({cell: real[cell] for cell in half}, there))
        far, square = tried[costs]
        say(
            f"{costs.send_s * 1e6:g} µs, {costs.receive_s * 1e6:g} µs: {far:.1%} too far off, {square:.2%} root mean square"
        )
    return min(tried, key=lambda costs: tried[costs])
