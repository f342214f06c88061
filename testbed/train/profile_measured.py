"""A profile of a real model, measured here: the median of several passes, after first-time costs are paid."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

from testbed.train.flat import FlatModel
from testbed.train.profile import LayerTimes, Profile
from testbed.train.timed_passes import TimedPasses

WARM_UP = 4
"""The first passes pay for what is loaded, compiled and allocated."""
PASSES = 11

OfPasses = Callable[[list[float]], float]


class HostStopwatch:
    """By a clock of the host: for what computes in the thread that calls it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._marks_s: list[float] = []

    def mark(self) -> None:
        """See ``Stopwatch``."""
        self._marks_s.append(self._now())

    def read(self) -> list[float]:
        """See ``Stopwatch``."""
        found = [mark_s - self._marks_s[0] for mark_s in self._marks_s]
        self._marks_s.clear()
        return found


class CudaStopwatch:
    """By events in the device's own queue, which is far behind the host: nothing waits for anything until it is read."""

    def __init__(self) -> None:
        self._marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """See ``Stopwatch``."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def read(self) -> list[float]:
        """See ``Stopwatch``."""
        self._marks[-1].synchronize()
        found = [self._marks[0].elapsed_time(event) / 1e3 for event in self._marks]
        self._marks.clear()
        return found


def measure(
    flat: FlatModel,
    compute: Callable[[], object],
    now: Callable[[], float],
    *,
    passes: int = PASSES,
    warm_up: int = WARM_UP,
    of_passes: OfPasses = median,
    about: str = "measured here",
) -> Profile:
    """Of ``compute``, which makes one forward and one backward pass of ``flat``'s model; ``now`` in seconds.

    Whatever else ``compute`` does before is the first layer's. Gradients are added to ``flat.gradients``, as ``compute`` does it.
    One pass is enough where it takes no time, on a virtual clock: all times are 0 then.
    ``of_passes``: the time that counts of a layer's. Raises InputError for a model whose layers do not follow one another.
    """
    device = flat.parameters.device
    watched = TimedPasses(flat, CudaStopwatch() if device.type == "cuda" else HostStopwatch(now))
    first = watched.times(compute)
    if not any(one.forward_s or one.backward_s for one in first):
        return Profile(tuple(first), "measured", about)
    for _ in range(warm_up - 1):
        watched.times(compute)
    seen = [watched.times(compute) for _ in range(passes)]
    layers = tuple(_one([times[n] for times in seen], of_passes) for n in range(len(first)))
    return Profile(layers, "measured", about)


def _one(seen: list[LayerTimes], of_passes: OfPasses) -> LayerTimes:
    forward_s = of_passes([one.forward_s for one in seen])
    return LayerTimes(seen[0].name, forward_s, of_passes([one.backward_s for one in seen]))
