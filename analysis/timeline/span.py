"""A span: one node did one thing from then until then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from testbed.record.summary import PHASES

ACTIVITIES = (
    "forward", "backward", "compute", "stall", "queue", *PHASES[2:], "held", "gather", "aggregate",
    "reply",
)  # fmt: skip
"""In the order of a legend. ``stall``: a worker's computation waited for parameters. ``queue``: what was there waited for
others' turn. ``held``: a bucket was decoded until its parameters began to be applied, which may be when they are next
computed with. ``gather``: from the first header to the last byte of all workers' parts; ``reply``: the server sends."""

LEAST_S = 1e-9
"""Less is the difference of two sums that should be equal."""


@dataclass(frozen=True, slots=True)
class Span:
    """Times in seconds of model time after t0; ``to_s`` is never before ``from_s``."""

    node: str
    bucket: int | None
    """None: of the whole step."""
    activity: str
    step: int
    from_s: float
    to_s: float
    layer: str | None = None
    """That is computed; None where it is not one layer's."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else is known of it, as JSON values."""

    @property
    def name(self) -> str:
        """What was done, and to which layer."""
        return self.activity if self.layer is None else f"{self.activity} {self.layer}"


def chain(times: Iterable[float], activities: Iterable[str]) -> Iterable[tuple[str, float, float]]:
    """Activities that follow one another, with their times; those that took less than ``LEAST_S`` are left out.

    A time before the one before it, which clocks of two threads may give, counts as equal to it.
    """
    for activity, (from_s, to_s) in zip(activities, pairwise(accumulate(times, max)), strict=True):
        if to_s - from_s >= LEAST_S:
            yield activity, from_s, to_s
