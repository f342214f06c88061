"""Scenarios of ``testbed bench control``: what happens to the server's link, carrying them out in
virtual time, and the densities that would have reached a target earliest.

All begin to move at 6 s: the longest warm-up of a controller (20 steps at k_max) ends before, and
the fastest run of 240 steps lasts 13 s, so that half of its steps follow.

A bound under a quasi-static model of progress: a step with density k does 1/N(k) of the work,
whatever came before. docs/how-to/step-responses.md says what that leaves out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import floor, inf
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from testbed.bench.results import Say, link, star, write_scenario
from testbed.runner.run import ParallelTask, side_by_side
from testbed.traces.generate import ramp, sawtooth, token_bucket, write_csv
from testbed.traces.rate_trace import RateTrace

CHANGE_S = 6.0
FAST, SLOW = 100, 20
"""Rates of the server's link, Mbit/s."""
STEPS = 240
EVALUATE_EVERY = 5
_RAMP_S, _TOOTH_S, _OUTAGE_S = 3.0, 4.0, 1.0

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Waveform:
    """Behaviour of the server's link, the same in both directions."""

    name: str
    before: int = FAST
    """Rate until ``CHANGE_S``, Mbit/s."""
    events: Sequence[Event] = ()
    trace: RateTrace | None = None
    """Written beside the scenario, as ``<name>.csv``."""
    settles: bool = True
    """True if the link comes to rest after ``CHANGE_S``, so that there is a level to settle at."""

    @property
    def reference(self) -> str:
        """The waveform that does the same until ``CHANGE_S``, and nothing then."""
        return f"constant-{self.before}"


def _event(kind: str, **more: Any) -> Event:
    return {"kind": kind, "links": ["server"], "at": f"{CHANGE_S:g} s", **more}


def _step(rate: int) -> Event:
    return _event("step", rate=f"{rate} Mbit/s")


def _traced(name: str, trace: RateTrace) -> Waveform:
    event = _event("trace", file=f"{name}.csv", at_end="loop")
    return Waveform(name, events=[event], trace=trace, settles=False)


_teeth = partial(sawtooth, low=SLOW, high=FAST, every_s=0.1)
_cloud = partial(token_bucket, peak=100, base=55, budget_s=6, busy=0.75, noise=0.08, every_s=1)
_ramp = partial(ramp, start=FAST, end=SLOW, every_s=0.1)


def _waveforms() -> Iterable[Waveform]:
    ramp_event = _event("trace", file="ramp.csv", at_end="hold")
    yield Waveform("step-down", FAST, [_step(SLOW)])
    yield Waveform("step-up", SLOW, [_step(FAST)])
    yield Waveform("ramp", FAST, [ramp_event], _ramp(seconds=_RAMP_S))
    yield _traced("sawtooth", _teeth(seconds=_TOOTH_S))
    yield Waveform("outage", FAST, [_event("outage", **{"for": f"{_OUTAGE_S:g} s"})])
    # as scenarios/traces/cloud.csv is made
    yield _traced("trace", _cloud(seconds=60, seed=7))


WAVEFORMS: dict[str, Waveform] = {each.name: each for each in _waveforms()}
"""Those that can be asked for."""
REFERENCES: dict[str, Waveform] = {
    each.name: each for each in (Waveform(f"constant-{rate}", rate) for rate in (FAST, SLOW))
}
"""Links that stay as they are."""


def scenario(waveform: Waveform, steps: int, algorithms: Sequence[Any]) -> dict[str, Any]:
    """Four workers and a server whose link moves; training is real."""
    train = {
        "task": "synthetic",
        "model": "mlp",
        "batch": 32,
        "optimizer": {"name": "sgd", "lr": 0.02, "momentum": 0.9},
        "pace": "50 ms",
        "stop": {"steps": steps},
        "evaluate_every": EVALUATE_EVERY,
    }
    return star(
        f"control-{waveform.name}",
        4,
        train,
        links={"default": link("100 Mbit/s"), "server": link(f"{waveform.before} Mbit/s")},
        events=list(waveform.events),
        algorithms=list(algorithms),
        peer_timeout="10 s",
    )


Runs = dict[str, dict[str, Path]]
"""Directories by waveform and algorithm."""


def write(folder: Path, waveform: Waveform, steps: int, algorithms: Sequence[Any]) -> Path:
    """The scenario as a file, and its trace beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    if waveform.trace is not None:
        (folder / f"{waveform.name}.csv").write_text(write_csv(waveform.trace), encoding="utf-8")
    return write_scenario(folder, waveform.name, scenario(waveform, steps, algorithms))


def simulate(requested: Iterable[ParallelTask], out: Path, processes: int, say: Say) -> Runs:
    """Directories by the name of the scenario's file and the algorithm."""
    tasks = list(requested)
    directories: Runs = {}
    for number, (index, entry, _) in enumerate(side_by_side(tasks, out, processes), 1):
        task = tasks[index]
        directories.setdefault(task.source.stem, {})[task.algorithm] = Path(entry["dir"])
        say(f"simulated {task.source.stem} with {task.algorithm}, {number} of {len(tasks)}")
    return directories


GRID = 20_000
"""Parts that progress is counted in, rounded down."""
_TAIL = 20
"""Steps whose mean length is that of all steps after a run's end."""


class RunClock:
    """The clock of a run with a fixed density: where it was among its steps tells how fast steps
    were then.

    Within a step time passes evenly, so that a later start never ends earlier.
    """

    def __init__(self, start_s: Sequence[float], end_s: Sequence[float]) -> None:
        self._bounds = [*start_s, end_s[-1]]
        tail = self._bounds[-_TAIL - 1 :]
        self._tail_s = fmean(b - a for a, b in pairwise(tail))

    def after(self, time_s: float, steps: float) -> float:
        """When so many steps have passed since ``time_s``."""
        return self._time(self._position(time_s) + steps)

    def _position(self, time_s: float) -> float:
        bounds, last = self._bounds, len(self._bounds) - 1
        if time_s >= bounds[last]:
            return last + (time_s - bounds[last]) / self._tail_s
        i = max(0, bisect_right(bounds, time_s) - 1)
        return i + max(0.0, time_s - bounds[i]) / (bounds[i + 1] - bounds[i])

    def _time(self, position: float) -> float:
        bounds, last = self._bounds, len(self._bounds) - 1
        if position >= last:
            return bounds[last] + (position - last) * self._tail_s
        i = floor(position)
        return bounds[i] + (position - i) * (bounds[i + 1] - bounds[i])


@dataclass(frozen=True, slots=True)
class Demand:
    """Steps to the target by density: N(k) = n0 + c/k."""

    n0: float
    c: float
    worst: float
    """The largest relative error at the densities that it was found from."""

    def steps(self, k: float) -> float:
        """N(k)."""
        return self.n0 + self.c / k


def fit(observed: Mapping[float, float]) -> Demand:
    """The least squares of relative errors, with n0 ≥ 0 and c ≥ 0. ``observed``: steps by density,
    two at least."""
    from scipy.optimize import nnls

    k, steps = (np.array(list(each)) for each in (observed.keys(), observed.values()))
    (n0, c), _ = nnls(np.stack([1 / steps, 1 / (k * steps)], axis=1), np.ones(len(k)))
    return Demand(float(n0), float(c), float(np.max(np.abs((n0 + c / k) / steps - 1))))


class ProgrammePlan(NamedTuple):
    """Schedule that the programme found."""

    time_s: float
    """E(1)."""
    starts_s: list[float]
    densities: list[float]
    """Density of every step, in order."""


def earliest(
    steps: Mapping[float, float], clocks: Mapping[float, RunClock], grid: int = GRID
) -> ProgrammePlan:
    """The sequence of densities that completes the work earliest from 0 on.

    ``steps``: N by density; ``clocks``: of the same densities. The last step counts for the share
    of it that is needed. Since a later start never ends earlier, the earliest time at every
    progress is enough to know.
    """
    times, came = [inf] * (grid + 1), [(0, 0.0)] * (grid + 1)
    times[0] = 0.0
    for progress in range(grid):
        if times[progress] == inf:
            continue
        for k, needed in steps.items():
            gain = floor(grid / needed + 1e-9)
            share = min(1.0, (grid - progress) / (grid / needed))
            then, ends = min(grid, progress + gain), clocks[k].after(times[progress], share)
            if share == 1.0 and then == progress:
                continue
            then = grid if share < 1.0 else then
            if ends < times[then]:
                times[then], came[then] = ends, (progress, k)
    return _backward(times, came)


def _backward(times: Sequence[float], came: Sequence[tuple[int, float]]) -> ProgrammePlan:
    at, starts, densities = len(times) - 1, [], []
    while at > 0:
        before, k = came[at]
        starts.append(times[before])
        densities.append(k)
        at = before
    return ProgrammePlan(times[-1], starts[::-1], densities[::-1])
