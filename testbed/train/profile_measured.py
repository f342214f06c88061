"""A profile of a real model, measured here: the median of several passes, after first-time costs are paid."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

from testbed.train.flat import FlatModel
from testbed.train.passes import Passes, Stopwatch
from testbed.train.profile import LayerTimes, Profile

WARM_UP = 3
"""The first passes pay for what is loaded, compiled and allocated."""
PASSES = 11


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
    about: str = "measured here",
) -> Profile:
    """Of ``compute``, which makes one forward and one backward pass of ``flat``'s model; ``now`` in seconds.

    Whatever else ``compute`` does before is the first layer's. Gradients are added to ``flat.gradients``, as ``compute`` does it.
    Raises InputError for a model whose layers do not follow one another.
    """
    device = flat.parameters.device
    return timed(
        flat,
        compute,
        CudaStopwatch() if device.type == "cuda" else HostStopwatch(now),
        passes,
        about,
    )


def timed(
    flat: FlatModel, compute: Callable[[], object], stopwatch: Stopwatch, passes: int, about: str
) -> Profile:
    """As ``measure``, by any stopwatch."""
    for _ in range(WARM_UP):
        compute()
    watched = Passes(flat, stopwatch)
    watched.times(compute)  # the hooks have first times too
    seen = [watched.times(compute) for _ in range(passes)]
    layers = tuple(_median([times[n] for times in seen]) for n in range(len(watched.layers)))
    return Profile(layers, "measured", about)


def _median(seen: list[LayerTimes]) -> LayerTimes:
    forward_s = median(one.forward_s for one in seen)
    return LayerTimes(seen[0].name, forward_s, median(one.backward_s for one in seen))
