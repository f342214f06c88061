"""What a scenario asked of its links: the reference that records are held against. Pure.

It comes from the scenario's own timeline, not from what the agent says that it was told: a change that was lost
on its way to the agent is missed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from testbed.scenario.shape import End, LinkChange, Shape
from testbed.scenario.timeline import Timeline


class Asked:
    """The shapes of every link direction from t0 until a time, in wall seconds after t0."""

    def __init__(self, initial: Mapping[End, Shape], changes: Iterable[LinkChange]) -> None:
        self._shapes = {end: [(0.0, shape)] for end, shape in initial.items()}
        for change in changes:
            self._shapes[change.end].append((change.time_s, change.shape))

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
        return self._shapes[end][0][1]

    def changes(self, end: End) -> list[tuple[float, Shape]]:
        """When the direction changes, and to what."""
        return self._shapes[end][1:]

    def shapes(self, end: End) -> Iterator[Shape]:
        """Every shape that the direction has at some time; none for a direction that is not shaped."""
        return (shape for _, shape in self._shapes.get(end, ()))

    def outages(self, end: End) -> Iterator[tuple[float, float]]:
        """From when to when nothing was asked for; the last one may have no end."""
        steps = self._shapes.get(end, [])
        until = [time_s for time_s, _ in steps[1:]] + [float("inf")]
        for (from_s, shape), to_s in zip(steps, until, strict=True):
            if not shape.rate_bits:
                yield from_s, to_s
