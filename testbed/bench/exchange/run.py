"""``testbed bench exchange``: all cells, the exchanges of each in turns; what was found is on disk after every cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.bench.exchange.cell import Cell, Link
from testbed.bench.exchange.measure import Bench, everybody, shape
from testbed.bench.exchange.sample import Sample, row
from testbed.bench.lab import Lab, lab
from testbed.bench.order import interleaved
from testbed.bench.result import Check, Suite
from testbed.bench.setup import Setup
from testbed.errors import ExperimentError, MachineError
from testbed.record.directory import fresh, to_json, write_atomically
from testbed.record.machine import machine
from testbed.session.interrupt import interruptible

RESULT = "exchange.json"
_SECONDS, _QUICK_SECONDS = 2.0, 0.3
"""How long each exchange is measured in every repetition."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: every combination. ``longest_s``: rounds that cannot be faster are left out."""

    exchanges: Sequence[str]
    links: Sequence[Link]
    nodes: Sequence[int]
    bytes: Sequence[int]
    longest_s: float
    repeat: int = 5
    quick: bool = False

    def cells(self, link: Link, nodes: int, size: int) -> list[Cell]:
        """Those that differ in the exchange only, without those that take too long."""
        cells = [Cell(exchange, nodes, size, link) for exchange in self.exchanges]
        return [cell for cell in cells if (cell.least_s or 0.0) <= self.longest_s]


@dataclass
class Found:
    """Rows so far; the file at ``path`` holds the same."""

    path: Path
    machine: dict[str, Any] = field(default_factory=machine)
    rows: list[dict[str, Any]] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """``{"results": [...], "absent": [...], "machine": {...}}``."""
        return {"results": self.rows, "absent": self.absent, "machine": self.machine}

    def save(self) -> None:
        """Write the file."""
        write_atomically(self.path, to_json(self.to_json(), indent=2) + "\n")

    def suite(self) -> Suite:
        """As a table."""
        shown = [{key: row[key] for key in row if key != "failure"} for row in self.rows]
        failed = [f"{row['exchange']}: {row['failure']}" for row in self.rows if row["failures"]]
        title = "Rounds of gradients through each exchange"
        return Suite(title, shown, _checks(self.rows), absent=[*self.absent, *failed])


def run(plan: Plan, out: Path, say: Callable[[str], None]) -> tuple[Path, Found]:
    """The directory of the results, and what was found. Raises MachineError, Interrupted."""
    directory = fresh(out / "measurements", f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}_exchange")
    found = Found(directory / RESULT)
    setup = Setup(directory, say, plan.repeat, plan.quick)
    with interruptible():
        for link in plan.links:
            for nodes in plan.nodes:
                for rows in _rows(plan, setup, link, nodes, found.absent):
                    found.rows += rows
                    found.save()
    return directory, found


def _rows(
    plan: Plan, setup: Setup, link: Link, nodes: int, absent: list[str]
) -> Iterator[list[dict[str, Any]]]:
    """The rows of one lab, a size after the other."""
    groups = {size: plan.cells(link, nodes, size) for size in plan.bytes}
    for size, cells in groups.items():
        if missing := set(plan.exchanges) - {cell.exchange for cell in cells}:
            names = ", ".join(sorted(missing))
            absent.append(
                f"{names} with {nodes} nodes, {size} B, {link.name}: a round takes longer than {plan.longest_s:g} s"
            )
    if not any(groups.values()):
        return
    residents = list(everybody(nodes).values())
    with lab(residents, setup) as made:
        shape(made, residents, link)
        for cells in filter(None, groups.values()):
            yield _group(setup, made, cells)


def _group(setup: Setup, made: Lab, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Cells that differ in the exchange only, in turns."""
    samples: dict[Cell, list[Sample]] = {cell: [] for cell in cells}
    failures: dict[Cell, list[str]] = {cell: [] for cell in cells}
    seconds = setup.seconds(_SECONDS, _QUICK_SECONDS)
    log = setup.directory / "log"
    with Bench(made, everybody(cells[0].nodes), seconds, log) as bench:
        for repetition, cell in interleaved(cells, setup.repetitions):
            setup.say(f"{cell.name}: {repetition + 1} of {setup.repetitions}")
            try:
                samples[cell].append(bench.measure(cell))
            except MachineError:
                raise
            except ExperimentError as error:
                failures[cell].append(str(error))
                setup.say(f"failed: {error}")
    return [row(cell, samples[cell], failures[cell]) for cell in cells]


def _checks(rows: Sequence[dict[str, Any]]) -> list[Check]:
    """That everything was measured, and over the network."""
    failed = sum(row["failures"] for row in rows)
    return [Check("measurements that failed", float(failed), "at most 0", failed == 0)]
