"""Steps of a job that marked them (``testbed.mark``): of each process, and of the job as a whole. Pure.

Times in wall seconds after t0, as in the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import fmean
from typing import Any

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class MarkedStep:
    """One step of one process."""

    node: str
    rank: int
    number: int
    start_s: float | None
    """The end of the process's step before; of its first, when it said that it was ready, or when the step's first
    phase began. None: nothing was said of that."""
    end_s: float
    phases_s: Mapping[str, float]
    """Seconds by phase, in their order; what is left of the step was in none."""
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class JobStep:
    """One step of the whole job: it ends when the last process has ended it, and begins when the one before ends."""

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


def marked_steps(marks: Iterable[Mapping[str, Any]]) -> list[MarkedStep]:
    """The steps that ``mark`` records tell of, by rank and time."""
    by_rank: dict[int, list[Mapping[str, Any]]] = {}
    for mark in sorted(marks, key=lambda mark: float(mark["time_s"])):
        by_rank.setdefault(int(mark["rank"]), []).append(mark)
    return [step for _, own in sorted(by_rank.items()) for step in _Process().steps(own)]


def job_steps(steps: Sequence[MarkedStep], processes: Records = ()) -> list[JobStep]:
    """The job's steps in their order. ``processes``: its ``process`` records, of those that have ended.

    A step that a process was still at when the records end is left out, and with it those that follow.
    """
    ended = {int(process["rank"]): float(process["ended_s"]) for process in processes}
    last = {step.rank: step.number for step in sorted(steps, key=lambda step: step.number)}
    by_number: dict[int, dict[int, MarkedStep]] = {}
    for step in steps:  # of a process that began anew, what it did last counts
        by_number.setdefault(step.number, {})[step.rank] = step
    found: list[JobStep] = []
    before_s: float | None = None
    for number in sorted(by_number):
        own = by_number[number]
        end_s = max(step.end_s for step in own.values())
        if any(most < number and ended.get(rank, inf) > end_s for rank, most in last.items()):
            break
        found.append(_job_step(number, own, before_s, max(end_s, before_s or 0.0)))
        before_s = found[-1].end_s
    return found


def phase_names(steps: Iterable[MarkedStep | JobStep]) -> list[str]:
    """Names of phases in the order in which they were first told."""
    return list(dict.fromkeys(name for step in steps for name in step.phases_s))


def value_names(steps: Iterable[MarkedStep | JobStep]) -> list[str]:
    """Names of values, likewise."""
    return list(dict.fromkeys(name for step in steps for name in step.values))


def last_values(steps: Sequence[JobStep]) -> dict[str, float]:
    """By name, the last that was told of each value."""
    return {name: value for step in steps for name, value in step.values.items()}


def _job_step(
    number: int, own: Mapping[int, MarkedStep], before_s: float | None, end_s: float
) -> JobStep:
    """``before_s``: the end of the step before; without one, the first begin that was told counts."""
    starts = [step.start_s for step in own.values() if step.start_s is not None]
    start_s = before_s if before_s is not None else min(starts, default=None)
    steps = list(own.values())
    phases = {
        name: fmean(step.phases_s.get(name, 0.0) for step in steps) for name in phase_names(steps)
    }
    values = {
        name: fmean(step.values[name] for step in steps if name in step.values)
        for name in value_names(steps)
    }
    return JobStep(number, start_s, end_s, phases, values)


class _Process:
    """What one process has said so far."""

    def __init__(self) -> None:
        self._start_s: float | None = None
        self._number = 0
        self._phase: tuple[str, float] | None = None
        self._phases: dict[str, float] = {}

    def steps(self, marks: Iterable[Mapping[str, Any]]) -> list[MarkedStep]:
        """The steps that its marks, in order of time, tell of."""
        found = (self._take(mark, float(mark["time_s"])) for mark in marks)
        return [step for step in found if step is not None]

    def _take(self, mark: Mapping[str, Any], now_s: float) -> MarkedStep | None:
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
        told = {
            name: float(value)
            for name, value in (mark.get("values") or {}).items()
            if value is not None and isfinite(float(value))
        }
        step = MarkedStep(str(mark["node"]), int(mark["rank"]), number, self._start_s, now_s,
                          dict(self._phases), told)  # fmt: skip
        self._start_s, self._number, self._phases = now_s, number, {}
        return step
