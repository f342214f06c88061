"""One repetition of one cell: connect, a few rounds, as many rounds as fit into the time, and what the wires say of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from testbed.bench.alternatives import segments
from testbed.bench.exchange import iperf
from testbed.bench.exchange.cell import Cell, Link
from testbed.bench.exchange.crew import Crew, crew, node_name
from testbed.bench.exchange.part import SERVER, Task
from testbed.bench.exchange.sample import Sample, bypass
from testbed.bench.exchange.table import IPERF
from testbed.bench.figures import queue_bytes
from testbed.bench.lab import CONGESTION, Lab
from testbed.errors import ExperimentError
from testbed.links.client import LinkSettings
from testbed.links.wiring import NIC
from testbed.scenario.expand import DIRECTIONS
from testbed.scenario.shape import End, Shape

_FIRST_PORT, _PORTS = 20_000, 10_000
_SET_UP_S, _ROUND_FACTOR = 180.0, 10.0
"""Libraries are loaded by many processes at once; how much longer than it must a round may take."""
_LONG_S = 1.0
"""Rounds that take longer are made less often."""
_FEWEST, _FEWEST_LONG, _MOST = 5, 2, 5_000
_LEAST_CARRIED = 0.99


def shape(lab: Lab, names: Iterable[str], link: Link) -> None:
    """Both directions of all links by the agent, as runs have it. Without a rate the cables stay as they are."""
    if link.rate_bits is None:
        return
    history = [(0.0, link.rate_bits)]
    asked = Shape(link.rate_bits, queue_bytes(history))
    lab.agent.prepare(
        {name: lab.places[name].cable for name in names},
        {End(name, way): asked for name in names for way in DIRECTIONS},
        LinkSettings(segments=segments([history]), congestion=CONGESTION),
    )


class Bench:
    """Measures cells of one number of nodes on one kind of link; for a ``with`` block."""

    def __init__(self, lab: Lab, numbers: Iterable[int], seconds: float, log: Path) -> None:
        self._lab, self._numbers, self._seconds = lab, list(numbers), seconds
        self._log = log
        self._ports, self._stack = count(), ExitStack()
        self._crew: Crew | None = None

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self, cell: Cell) -> Sample:
        """Raises ExperimentError; the processes are others then."""
        if cell.exchange == IPERF:
            return iperf.measure(self._lab, cell, max(1, round(self._seconds)))
        try:
            return self._measure(self._hands(), cell)
        except BaseException:
            self._stack.close()
            self._crew = None
            raise

    def _hands(self) -> Crew:
        if self._crew is None or not self._crew.alive:
            self._stack.close()
            self._crew = self._stack.enter_context(crew(self._lab, self._numbers, self._log))
        return self._crew

    def _measure(self, hands: Crew, cell: Cell) -> Sample:
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
        told = hands.answers(tasks, _SET_UP_S + rounds * max(patience_s, _ROUND_FACTOR * round_s))
        cpu_s = sum(float(said["cpu_s"]) for said in told.values())
        hands.tell(dict.fromkeys(tasks, "count"))
        counted = _counted(hands.answers(tasks, _SET_UP_S))
        hands.answers(tasks, _SET_UP_S)
        carried = bypass(cell, rounds, counted)
        if carried < _LEAST_CARRIED:
            raise ExperimentError(
                f"{cell.name}: only {carried:.2%} of what was exchanged passed the interfaces"
            )
        seconds = list(map(float, told[timekeeper]["seconds"]))
        # the first round begins when the last node has been told to
        kept = seconds[1:] if len(seconds) > _FEWEST_LONG else seconds
        return Sample(kept, cpu_s / (rounds * cell.moved / 1e9), carried)

    def _rounds(self, round_s: float, cell: Cell) -> int:
        fewest = _FEWEST if (cell.least_s or 0.0) < _LONG_S else _FEWEST_LONG
        return min(_MOST, max(fewest, round(self._seconds / round_s)))

    def _tasks(self, cell: Cell) -> dict[int, str]:
        """What each node is told, by number."""
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
        return {n: json.dumps(Task(own=n, **common).to_json()) for n in cell.numbers}


def _counted(said: dict[int, dict[str, Any]]) -> dict[int, tuple[int, int]]:
    return {number: (int(one["received"]), int(one["sent"])) for number, one in said.items()}


def everybody(nodes: int) -> dict[int, str]:
    """Names by number: the server, and so many nodes."""
    return {number: node_name(number) for number in range(SERVER, nodes + 1)}
