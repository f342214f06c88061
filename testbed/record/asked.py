"""What a scenario asked of its links: the reference that records are held against. Pure.

It comes from the scenario's own timeline, not from what the agent says that it was told: a change that was lost
on its way to the agent is missed here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from math import inf

from testbed.scenario.shape import End, LinkChange, Shape
from testbed.scenario.timeline import Timeline


class Asked:
    """The shapes of every link direction from t0 until a time, in wall seconds after t0. Shapes that recur are kept once."""

    def __init__(self, initial: Mapping[End, Shape], changes: Iterable[LinkChange]) -> None:
        self._known: dict[Shape, int] = {}
        self._every: list[Shape] = []
        self._times = {end: array("d", [0.0]) for end in initial}
        self._shapes = {end: array("l", [self._kept(shape)]) for end, shape in initial.items()}
        for change in changes:
            self._times[change.end].append(change.time_s)
            self._shapes[change.end].append(self._kept(change.shape))

    @classmethod
    def of(cls, timeline: Timeline, until_s: float) -> Asked:
        """What ``timeline`` asks for before ``until_s``."""
        return cls(timeline.initial, timeline.changes(0.0, max(until_s, 0.0)))

    def __contains__(self, end: End) -> bool:
        return end in self._shapes

    @property
    def ends(self) -> list[End]:
        """All link directions."""
        return list(self._shapes)

    def initial(self, end: End) -> Shape:
        """What holds at t0."""
        return self._every[self._shapes[end][0]]

    def changes(self, end: End) -> Iterator[tuple[float, Shape]]:
        """When the direction changes, and to what."""
        return islice(zip(self._times[end], self.shapes(end), strict=True), 1, None)

    def shapes(self, end: End) -> Iterator[Shape]:
        """Every shape that the direction has at some time; none for a direction that is not shaped."""
        return (self._every[one] for one in self._shapes.get(end, ()))

    def outages(self, end: End) -> Iterator[tuple[float, float]]:
        """From when to when nothing was asked for; the last one may have no end."""
        times = self._times.get(end, array("d"))
        until = chain(islice(times, 1, None), [inf])
        for from_s, shape, to_s in zip(times, self.shapes(end), until, strict=False):
            if not shape.rate_bits:
                yield from_s, to_s

    def _kept(self, shape: Shape) -> int:
        """The number under which ``shape`` is kept."""
        number = self._known.setdefault(shape, len(self._every))
        if number == len(self._every):
            self._every.append(shape)
        return number
