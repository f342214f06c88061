"""How long each of a worker's steps is to compute, and holding it to that, so that nodes that
share a processor behave like accelerators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from statistics import NormalDist, median

from testbed.errors import InputError
from testbed.node import Node
from testbed.scenario.model import LogNormalPace, RecordedPace
from testbed.scenario.model import Pace as ModelPace
from testbed.training.data import derive
from testbed.training.job import Job

_FAR = 5.0
"""Standard deviations: one step in 3.5 million takes longer than so far above the median."""
_NORMAL, _DRAWS = NormalDist(), 2.0**63


@dataclass(frozen=True, slots=True)
class StepTimes:
    """``at``: by step, counted from 1. ``usual_s``: what a profile's times add up to.
    ``longest_s``: whom others wait for."""

    at: Callable[[int], float]
    usual_s: float
    longest_s: float

    def factor(self, step: int) -> float:
        """Return the factor on a usual step's parts: exactly 1 where all steps are alike."""
        requested_s = self.at(step)
        return requested_s / self.usual_s if self.usual_s else 1.0


def step_times(job: Job) -> StepTimes | None:
    """Return the step times of the worker of ``job``; None: steps take as long as they take. Raises
    InputError without the times of its file."""
    return times_of(job.train.pace, job.seed, job.node, job.step_times, job.dilation)


def times_of(
    pace: ModelPace | None,
    seed: int,
    node: str,
    recorded: Sequence[float] = (),
    dilation: float = 1.0,
) -> StepTimes | None:
    """``pace`` in wall time; ``recorded``: seconds of model time, where it is from a file. Raises
    InputError without them."""
    if pace is None:
        return None
    if isinstance(pace, LogNormalPace):
        return _drawn(pace, seed, node)
    if isinstance(pace, RecordedPace):
        return _recorded(pace, seed, node, recorded, dilation)
    seconds = float(pace)
    return StepTimes(lambda _: seconds, seconds, seconds)


def longest_s(job: Job) -> float:
    """The longest that any worker of the run is silent while it computes one batch."""
    if job.longest_pace_s is not None:
        return job.longest_pace_s
    times = step_times(job)
    return 0.0 if times is None else times.longest_s


def _drawn(pace: LogNormalPace, seed: int, node: str) -> StepTimes:
    """T = median · exp(σ·Z), Z = Φ⁻¹(u), u uniform of (seed, node, step)."""
    middle_s, sigma = pace.median_s, pace.sigma

    def at(step: int) -> float:
        uniform = (derive(seed, "pace", node, step) + 0.5) / _DRAWS
        # the largest draws round up to 1, of which there is no inverse
        return middle_s * exp(sigma * _NORMAL.inv_cdf(min(uniform, 1.0 - 2.0**-53)))

    return StepTimes(at, middle_s, middle_s * exp(_FAR * sigma))


def _recorded(
    pace: RecordedPace, seed: int, node: str, times: Sequence[float], dilation: float
) -> StepTimes:
    factor = pace.scale * dilation
    if not times:
        raise InputError(f"the job lacks the step times of {pace.file!r}")
    first = derive(seed, "pace", node) % len(times) if pace.begin == "drawn" else 0

    def at(step: int) -> float:
        return times[(first + step - 1) % len(times)] * factor

    return StepTimes(at, median(times) * factor, max(times) * factor)


class Pace:
    """``times``: how long each step's computation takes; None: as long as it takes."""

    def __init__(self, node: Node, times: StepTimes | None) -> None:
        self._node, self._times = node, times

    def requested_s(self, step: int, share: float = 1.0) -> float | None:
        """Wall seconds that ``step`` is to compute for, or for ``share`` of a batch of it."""
        return None if self._times is None else self._times.at(step) * share

    def hold(self, step: int, start_s: float, share: float = 1.0) -> bool:
        """Wait until ``step``, which began at ``start_s``, has computed for its time, or ``share``
        of it. The deadline is absolute, so that lateness does not add up. True when it had passed
        already."""
        requested_s = self.requested_s(step, share)
        if requested_s is None:
            return False
        deadline = start_s + requested_s
        if self._node.now() > deadline:
            return True
        self._node.sleep_until(deadline)
        return False
