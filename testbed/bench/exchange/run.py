"""``testbed bench exchange``: all cells, the exchanges of each in turns; one repetition connects,
warms up, makes as many rounds as fit into the time, and reads the interfaces. What was found is
on disk after every cell.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from testbed.bench.exchange.cases import (
    IPERF,
    SERVER,
    BenchLink,
    BenchTask,
    ExchangeCell,
    ExchangeSample,
    bypass,
    row,
)
from testbed.bench.exchange.nodes import BenchProcesses, bench_processes, node_name
from testbed.bench.links.alternatives import shape
from testbed.bench.links.lab import OMITTED_S, Lab, flowing, lab
from testbed.bench.results import (
    ResultCheck,
    Say,
    Setup,
    Suite,
    interleaved,
    measurement,
    write_json,
)
from testbed.errors import ExperimentError, MachineError
from testbed.links.agent.protocol import dump
from testbed.links.network.wiring import NIC
from testbed.records.manifest import machine_facts
from testbed.runner.signals import interruptible
from testbed.scenario.expand import DIRECTIONS
from testbed.scenario.link_model import Directions
from testbed.scenario.link_state import LinkDirection

_FIRST_PORT, _PORTS = 20_000, 10_000
_SET_UP_S, _ROUND_FACTOR = 180.0, 10.0
"""Libraries are loaded by many processes at once; how much longer than it must a round may take."""
_LONG_S = 1.0
"""Rounds that take longer are made less often."""
_FEWEST, _FEWEST_LONG, _MOST = 5, 2, 5_000
_LEAST_CARRIED = 0.99


def shape_all(lab: Lab, names: Iterable[str], link: BenchLink) -> None:
    """Both directions of all links by the agent, as runs have it. Without a rate the cables stay as
    they are."""
    if link.rate_bits is None:
        return
    history = [(0.0, link.rate_bits)]
    shape(
        lab, {LinkDirection(name, direction): history for name in names for direction in DIRECTIONS}
    )


class ExchangeBench:
    """Measures cells of one number of nodes on one kind of link; for a ``with`` block."""

    def __init__(self, lab: Lab, numbers: Iterable[int], seconds: float, log: Path) -> None:
        self._lab, self._numbers, self._seconds = lab, list(numbers), seconds
        self._log = log
        self._ports, self._stack = count(), ExitStack()
        self._processes: BenchProcesses | None = None

    def __enter__(self) -> ExchangeBench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self, cell: ExchangeCell) -> ExchangeSample:
        """Raises ExperimentError; the processes are others then."""
        if cell.exchange == IPERF:
            return _iperf3(self._lab, cell, max(1, round(self._seconds)))
        try:
            return self._measure(self._running_processes(), cell)
        except BaseException:
            self._stack.close()
            self._processes = None
            raise

    def _running_processes(self) -> BenchProcesses:
        if self._processes is None or not self._processes.alive:
            self._stack.close()
            self._processes = self._stack.enter_context(
                bench_processes(self._lab, self._numbers, self._log)
            )
        return self._processes

    def _measure(self, hands: BenchProcesses, cell: ExchangeCell) -> ExchangeSample:
        tasks = self._tasks(cell)
        patience_s = _ROUND_FACTOR * (cell.least_s or 1.0)
        hands.tell(tasks)
        hands.answers(tasks, _SET_UP_S)
        hands.tell(dict.fromkeys(tasks, "warm"))
        warm = hands.answers(tasks, _SET_UP_S + 3 * patience_s)
        timekeeper = min(tasks)
        round_s = float(warm[timekeeper]["round_s"])
        rounds = self._rounds(round_s, cell)
        hands.tell(dict.fromkeys(tasks, f"go {rounds}"))
        answers = hands.answers(
            tasks, _SET_UP_S + rounds * max(patience_s, _ROUND_FACTOR * round_s)
        )
        cpu_s = sum(float(said["cpu_s"]) for said in answers.values())
        hands.tell(dict.fromkeys(tasks, "count"))
        counted = _counted(hands.answers(tasks, _SET_UP_S))
        hands.answers(tasks, _SET_UP_S)
        carried = bypass(cell, rounds, counted)
        if carried < _LEAST_CARRIED:
            raise ExperimentError(
                f"{cell.name}: only {carried:.2%} of what was exchanged passed the interfaces"
            )
        seconds = list(map(float, answers[timekeeper]["seconds"]))
        # the first round begins when the last node has been told to
        kept = seconds[1:] if len(seconds) > _FEWEST_LONG else seconds
        return ExchangeSample(kept, cpu_s / (rounds * cell.moved / 1e9), carried)

    def _rounds(self, round_s: float, cell: ExchangeCell) -> int:
        fewest = _FEWEST if (cell.least_s or 0.0) < _LONG_S else _FEWEST_LONG
        return min(_MOST, max(fewest, round(self._seconds / round_s)))

    def _tasks(self, cell: ExchangeCell) -> dict[int, str]:
        """Return the task that each node is told, by number."""
        addresses = {
            number: self._lab.places[node_name(number)].data_address for number in self._numbers
        }
        common: dict[str, Any] = {
            "exchange": cell.exchange,
            "nodes": cell.nodes,
            "bytes": cell.bytes,
            "addresses": addresses,
            "port": _FIRST_PORT + next(self._ports) % _PORTS,
            "device": NIC,
            "warm_up": 3 if (cell.least_s or 0.0) < _LONG_S else 1,
            "run": secrets.randbits(63),
            "timeout_s": max(30.0, _ROUND_FACTOR * (cell.least_s or 1.0)),
        }
        return {n: dump(BenchTask(own=n, **common)) for n in cell.numbers}


def _counted(said: dict[int, dict[str, Any]]) -> dict[int, tuple[int, int]]:
    return {
        number: (int(answer["received"]), int(answer["sent"])) for number, answer in said.items()
    }


def everybody(nodes: int) -> dict[int, str]:
    """Names by number: the server, and so many nodes."""
    return {number: node_name(number) for number in range(SERVER, nodes + 1)}


RESULT = "exchange.json"
_SECONDS, _QUICK_SECONDS = 2.0, 0.3
"""How long each exchange is measured in every repetition."""


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """Measurements to make: every combination. ``longest_s``: rounds that cannot be faster are left
    out."""

    exchanges: Sequence[str]
    links: Sequence[BenchLink]
    nodes: Sequence[int]
    bytes: Sequence[int]
    longest_s: float
    repeat: int = 5
    quick: bool = False

    def cells(self, link: BenchLink, nodes: int, size: int) -> list[ExchangeCell]:
        """Those that differ in the exchange only, without those that are left out."""
        cells = [ExchangeCell(exchange, nodes, size, link) for exchange in self.exchanges]
        return [cell for cell in cells if self.left_out(cell) is None]

    def left_out(self, cell: ExchangeCell) -> str | None:
        """Return why a cell is not measured; None: it is."""
        if not cell.is_whole:
            return "it needs more nodes, one would receive or send nothing"
        if (cell.least_s or 0.0) > self.longest_s:
            return f"a round takes longer than {self.longest_s:g} s"
        return None


@dataclass
class ExchangeResult:
    """Rows so far; the file at ``path`` holds the same."""

    path: Path
    machine: dict[str, Any] = field(default_factory=machine_facts)
    rows: list[dict[str, Any]] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """``{"results": [...], "absent": [...], "machine": {...}}``."""
        return {"results": self.rows, "absent": self.absent, "machine": self.machine}

    def save(self) -> None:
        """Write the file."""
        write_json(self.path, self.to_json())

    def suite(self) -> Suite:
        """As a table."""
        shown = [{key: row[key] for key in row if key != "failure"} for row in self.rows]
        failed = [f"{row['exchange']}: {row['failure']}" for row in self.rows if row["failures"]]
        title = "Rounds of gradients through each exchange"
        return Suite(title, shown, _checks(self.rows), absent=[*self.absent, *failed])


def run(plan: ExchangePlan, out: Path, say: Say) -> tuple[Path, ExchangeResult]:
    """The directory of the results, and what was found. Raises MachineError, Interrupted."""
    directory = measurement(out, "exchange")
    result = ExchangeResult(directory / RESULT)
    setup = Setup(directory, say, plan.repeat, plan.quick)
    with interruptible():
        for link in plan.links:
            for nodes in plan.nodes:
                for rows in _rows(plan, setup, link, nodes, result.absent):
                    result.rows += rows
                    result.save()
    return directory, result


def _rows(
    plan: ExchangePlan, setup: Setup, link: BenchLink, nodes: int, absent: list[str]
) -> Iterator[list[dict[str, Any]]]:
    """The rows of one lab, a size after the other."""
    groups = {size: plan.cells(link, nodes, size) for size in plan.bytes}
    for size in groups:
        missing: dict[str, list[str]] = {}
        for name in sorted(set(plan.exchanges)):
            if reason := plan.left_out(ExchangeCell(name, nodes, size, link)):
                missing.setdefault(reason, []).append(name)
        for reason, names in missing.items():
            listed = ", ".join(names)
            absent.append(f"{listed} with {nodes} nodes, {size} B, {link.name}: {reason}")
    if not any(groups.values()):
        return
    residents = list(everybody(nodes).values())
    with lab(residents, setup) as links:
        shape_all(links, residents, link)
        for cells in filter(None, groups.values()):
            yield _group(setup, links, cells)


def _group(setup: Setup, links: Lab, cells: Sequence[ExchangeCell]) -> list[dict[str, Any]]:
    """Cells that differ in the exchange only, in turns."""
    samples: dict[ExchangeCell, list[ExchangeSample]] = {cell: [] for cell in cells}
    failures: dict[ExchangeCell, list[str]] = {cell: [] for cell in cells}
    seconds = setup.seconds(_SECONDS, _QUICK_SECONDS)
    log = setup.directory / "log"
    with ExchangeBench(links, everybody(cells[0].nodes), seconds, log) as bench:
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


def _checks(rows: Sequence[dict[str, Any]]) -> list[ResultCheck]:
    """That everything was measured, and over the network."""
    failed = sum(row["failures"] for row in rows)
    return [ResultCheck("measurements that failed", float(failed), "at most 0", failed == 0)]


def _iperf3(lab: Lab, cell: ExchangeCell, seconds: int) -> ExchangeSample:
    """Rounds as they would be if each phase went at the speed of iperf3's flows, the most that
    links carry. Raises ExperimentError."""
    began_s = _children_s()
    up, down = (_all(lab, cell, seconds, direction) for direction in DIRECTIONS)
    cpu_s = _children_s() - began_s
    carried = (up + down) / 8 * (seconds + OMITTED_S)
    round_s = 8 * cell.nodes * cell.bytes * (1 / up + 1 / down)
    return ExchangeSample([round_s], cpu_s / (carried / 1e9))


def _all(lab: Lab, cell: ExchangeCell, seconds: int, direction: Directions) -> float:
    """Payload of all flows to or from the server together, bit/s, counted where it arrives."""
    nodes = [node_name(number) for number in cell.numbers[1:]]
    with flowing(lab, nodes, seconds, direction, node_name(SERVER)) as flows:
        carried = [flow.payload_bits() for flow in flows]
    if not all(carried):
        raise ExperimentError("iperf3 carried nothing")
    return sum(filter(None, carried))


def _children_s() -> float:
    """Processor seconds of all processes that have been started from here and have ended."""
    times = os.times()
    return times.children_user + times.children_system
