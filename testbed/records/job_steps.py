"""Steps that a foreign job marked (``testbed.mark``), of each process and of the whole, and its
records: processes, connections, bytes.

Times in seconds after t0, wall clock, as in ``testbed.records.events``. All are in
``events/<role>-<rank>.jsonl`` of the node that they tell of.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import fsum, inf, isfinite, isnan, nan
from statistics import fmean
from sys import float_info
from typing import Any, TypeVar

import numpy as np

from testbed.records.events import Event
from testbed.records.stored import PackedNumbers, PackedSequence, Records


@dataclass(frozen=True, slots=True)
class MarkedStep:
    """One step of one process."""

    node: str
    rank: int
    number: int
    start_s: float | None
    """The end of the process's step before; of its first, when it said that it was ready, or when
    the step's first phase began. None: nothing was said of that."""
    end_s: float
    phases_s: Mapping[str, float]
    """Seconds by phase, in their order; what is left of the step was in none."""
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class JobStep:
    """One step of the whole job, from the end of the one before until all processes end it."""

    number: int
    start_s: float | None
    """None: nobody said when the job's first step began."""
    end_s: float
    phases_s: Mapping[str, float]
    """Mean over processes."""
    values: Mapping[str, float]
    """Mean over the processes that told one."""

    @property
    def length_s(self) -> float | None:
        """Seconds; None where its begin is not known."""
        return None if self.start_s is None else self.end_s - self.start_s


S = TypeVar("S", MarkedStep, JobStep)


class _PackedSteps(PackedSequence[S]):
    """Steps in columns of numbers: a day's run has a million of them."""

    def __init__(self) -> None:
        self.numbers = array("q")
        self._starts, self._ends = array("d"), array("d")
        self._phases, self._values = PackedNumbers(), PackedNumbers()

    def append(self, step: S) -> None:
        """Add a step behind the others."""
        self.numbers.append(step.number)
        self._starts.append(nan if step.start_s is None else step.start_s)
        self._ends.append(step.end_s)
        self._phases.append(step.phases_s)
        self._values.append(step.values)

    def __len__(self) -> int:
        return len(self._ends)

    def _start_s(self, at: int) -> float | None:
        """The begin of a step; None where it is not known."""
        start_s = self._starts[at]
        return None if isnan(start_s) else start_s


class MarkedSteps(_PackedSteps[MarkedStep]):
    """Any number of marked steps, packed."""

    def __init__(self) -> None:
        super().__init__()
        self._nodes: dict[str, int] = {}
        self._places, self._ranks = array("q"), array("q")

    def append(self, step: MarkedStep) -> None:
        """Add a step behind the others."""
        super().append(step)
        self._places.append(self._nodes.setdefault(step.node, len(self._nodes)))
        self._ranks.append(step.rank)

    def _at(self, at: int) -> MarkedStep:
        return MarkedStep(
            list(self._nodes)[self._places[at]],
            self._ranks[at],
            self.numbers[at],
            self._start_s(at),
            self._ends[at],
            self._phases[at],
            self._values[at],
        )


class JobSteps(_PackedSteps[JobStep]):
    """Any number of a job's steps, packed."""

    def _at(self, at: int) -> JobStep:
        return JobStep(
            self.numbers[at],
            self._start_s(at),
            self._ends[at],
            self._phases[at],
            self._values[at],
        )


def marked_steps(marks: Records) -> MarkedSteps:
    """The steps that ``mark`` records tell of, by rank and time."""
    ranks, times = array("q"), array("d")
    for mark in marks:
        ranks.append(int(mark["rank"]))
        times.append(float(mark["time_s"]))
    steps, processes = MarkedSteps(), defaultdict[int, _Process](_Process)
    for at in np.lexsort((np.array(times), np.array(ranks))):
        if (step := processes[ranks[at]].take(marks[int(at)], times[at])) is not None:
            steps.append(step)
    return steps


def job_steps(steps: MarkedSteps, processes: Records = ()) -> JobSteps:
    """The job's steps in their order. ``processes``: its ``process`` records, of those that have
    ended.

    A step that a process was still at when the records end is left out, and with it those that
    follow.
    """
    ended = {int(process["rank"]): float(process["ended_s"]) for process in processes}
    last: dict[int, int] = {}
    for step in steps:
        last[step.rank] = max(step.number, last.get(step.rank, step.number))
    joined, before_s = JobSteps(), None
    ordered = (steps[int(at)] for at in np.argsort(np.array(steps.numbers), kind="stable"))
    for number, same in groupby(ordered, key=lambda step: step.number):
        # of a process that began anew, what it did last counts
        own = {step.rank: step for step in same}
        end_s = max(step.end_s for step in own.values())
        if any(most < number and ended.get(rank, inf) > end_s for rank, most in last.items()):
            break
        step_made = _job_step(number, own, before_s, max(end_s, before_s or 0.0))
        joined.append(step_made)
        before_s = step_made.end_s
    return joined


def phase_names(steps: Iterable[MarkedStep | JobStep]) -> list[str]:
    """Names of phases in the order in which they were first told."""
    return list(dict.fromkeys(name for step in steps for name in step.phases_s))


def value_names(steps: Iterable[MarkedStep | JobStep]) -> list[str]:
    """Names of values, likewise."""
    return list(dict.fromkeys(name for step in steps for name in step.values))


def last_values(steps: Iterable[JobStep]) -> dict[str, float]:
    """Return the last given value of each name."""
    return {name: value for step in steps for name, value in step.values.items()}


def _job_step(
    number: int, own: Mapping[int, MarkedStep], before_s: float | None, end_s: float
) -> JobStep:
    """``before_s``: the end of the step before; without it the first begin counts."""
    starts = [step.start_s for step in own.values() if step.start_s is not None]
    start_s = before_s if before_s is not None else min(starts, default=None)
    steps = list(own.values())
    phases = {
        name: _mean([step.phases_s.get(name, 0.0) for step in steps]) for name in phase_names(steps)
    }
    values = {
        name: _mean([step.values[name] for step in steps if name in step.values])
        for name in value_names(steps)
    }
    return JobStep(number, start_s, end_s, phases, values)


def _mean(values: Sequence[float]) -> float:
    """The mean, also where the sum is larger than any number."""
    try:
        return fmean(values)
    except OverflowError:
        mean = 2 * fsum(value / 2 / len(values) for value in values)
        return min(max(mean, -float_info.max), float_info.max)


class _Process:
    """The state of one process: its marks so far."""

    def __init__(self) -> None:
        self._start_s: float | None = None
        self._number = 0
        self._phase: tuple[str, float] | None = None
        self._phases: dict[str, float] = {}

    def take(self, mark: Mapping[str, Any], now_s: float) -> MarkedStep | None:
        """Its next mark, in order of time; returns the step that this ends."""
        what = mark["what"]
        if what == "step":
            return self._step(mark, now_s)
        if what == "begin":
            self._start_s, self._phases, self._phase = max(0.0, now_s), {}, None
        elif what == "phase":
            self._leave(now_s)
            self._phase = str(mark["name"]), now_s
            if self._start_s is None and not self._number:
                self._start_s = now_s
        elif what == "end" and self._phase is not None and mark["name"] in (None, self._phase[0]):
            self._leave(now_s)
        return None

    def _leave(self, now_s: float) -> None:
        if self._phase is not None:
            name, from_s = self._phase
            self._phases[name] = self._phases.get(name, 0.0) + now_s - from_s
        self._phase = None

    def _step(self, mark: Mapping[str, Any], now_s: float) -> MarkedStep:
        self._leave(now_s)
        number = int(mark["number"])
        if number <= self._number:  # it was started again: the time between is no step's
            self._start_s = None
        values = {
            name: float(value)
            for name, value in (mark.get("values") or {}).items()
            if value is not None and isfinite(float(value))
        }
        step = MarkedStep(
            str(mark["node"]),
            int(mark["rank"]),
            number,
            self._start_s,
            now_s,
            dict(self._phases),
            values,
        )
        self._start_s, self._number, self._phases = now_s, number, {}
        return step


@dataclass(frozen=True, slots=True)
class ProcessRecord(Event):
    """One process of the command, written when it has ended."""

    kind = "process"
    node: str
    rank: int
    """Among all processes of the job."""
    local_rank: int
    """Among those of its node."""
    started_s: float
    ended_s: float
    status: int
    """Its exit status; negative: the signal that killed it."""
    asked: bool
    """It was told to end: by a time limit, an event, or since another one had failed."""


@dataclass(frozen=True, slots=True)
class MarkRecord(Event):
    """A mark that a process set with ``testbed.mark``."""

    kind = "mark"
    node: str
    rank: int
    local_rank: int
    what: str
    """``step``: a step has ended; ``phase``: the phase ``name`` has begun; ``end``: it has ended;
    ``begin``: the process was ready, before t0 where the others were waited for."""
    name: str | None
    """The name of a phase."""
    number: int | None
    """The number of a step, counted from 1."""
    time_s: float
    values: dict[str, float]
    """Values that the process gave for a step: ``loss``, …"""


@dataclass(frozen=True, slots=True)
class CarriedRecord(Event):
    """Bytes of a node's interface from before the first process's start to the end."""

    kind = "carried"
    node: str
    interface: str
    role: str
    """``data``: the shaped one; ``control``; ``loopback``."""
    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int


@dataclass(frozen=True, slots=True)
class SocketRecord(Event):
    """A TCP connection of a node's, to its end or the run's, as the kernel counted it."""

    kind = "socket"
    node: str
    own: str
    """``address:port``."""
    peer: str
    peer_node: str | None
    """Node of that address; None: of no node (the switch, or another network)."""
    interface: str
    """``data``, ``control`` or ``loopback``: by its own address and its peer's."""
    bytes_sent: int
    """Payload, with what was sent again."""
    bytes_received: int
    """The kernel counts the peer's end as one."""
    segments_out: int
    retransmitted: int
    """Segments."""
    bytes_retransmitted: int
    least_rtt_us: int | None
    ended_s: float | None
    """None: it was still open at the end."""


def round_trip_s(sockets: Iterable[Mapping[str, Any]]) -> float:
    """Seconds to a peer and back at the least, on the slowest of the shaped connections that
    carried much; 0 where none is known. ``sockets``: ``SocketRecord``."""
    timed = [
        (int(each["bytes_sent"]) + int(each["bytes_received"]), each["least_rtt_us"] / 1e6)
        for each in sockets
        if each["interface"] == "data" and each["least_rtt_us"] is not None
    ]
    much = max((carried for carried, _ in timed), default=0) / 10
    return max((rtt_s for carried, rtt_s in timed if carried >= much), default=0.0)
