"""Whether every change of the scenario was made, when, and to what: records against the scenario itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from testbed.record.asked import Asked
from testbed.record.changes import Change, Changes
from testbed.scenario.shape import End, Shape

SAME_S = 1e-6
"""A change is the one that was due if their times differ by no more: they come from the same numbers."""

STILL_S = 0.1
"""A change that was due so shortly before the last look may be on its way."""


@dataclass(slots=True)
class Followed:
    """How a link direction followed its changes. Sentences in ``wrong``; times in seconds after t0."""

    expected: int = 0
    applied: int = 0
    missing: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """A sentence for everything that is not as asked."""
        said = list(self.wrong)
        if self.missing:
            many, first = len(self.missing), self.missing[0]
            said.append(
                f"{many} of {self.expected} changes were never made, the first was due at {first:.3f} s"
            )
        return said


def follow(
    asked: Asked, made: Mapping[End, Changes], until_s: Mapping[End, float]
) -> dict[End, Followed]:
    """Every direction's changes against ``made``, what its ``change`` records say, in order of time.

    ``until_s``: the last look at each direction; what was due after it is not expected. Directions without
    one were not watched and are left out.
    """
    return {
        end: _follow(asked.changes(end), made.get(end, Changes()), until_s[end])
        for end in asked.ends
        if end in until_s
    }


def starts(asked: Asked, held: Iterable[Mapping[str, Any]]) -> dict[End, list[str]]:
    """A sentence for everything that was not as asked before t0; ``held``: the manifest's links."""
    found: dict[End, list[str]] = {}
    for link in held:
        end = End(link["link"], link["direction"])
        if end not in asked or not (shape := asked.initial(end)).rate_bits:
            continue
        wanted = (8 * -(-shape.rate_bits // 8), shape.queue_bytes)
        had = (link.get("rate_bits"), link.get("limit_bytes"))
        if None not in had and had != wanted:
            found.setdefault(end, []).append(
                f"at t0 it had {had[0]} bit/s and a queue of {had[1]} B, not {wanted[0]} bit/s and {wanted[1]} B"
            )
    return found


def _follow(
    changes: Iterable[tuple[float, Shape]], made: Iterable[Change], until_s: float
) -> Followed:
    found, rest = Followed(), iter(made)
    following = next(rest, None)
    for time_s, shape in changes:
        if time_s > until_s:
            break
        while following is not None and following.due_s < time_s - SAME_S:
            found.wrong.append(_unasked(following))
            following = next(rest, None)
        if following is not None and abs(following.due_s - time_s) <= SAME_S:
            found.expected += 1
            found.applied += 1
            found.wrong += _differs(shape, following)
            following = next(rest, None)
        elif time_s <= until_s - STILL_S:
            found.expected += 1
            found.missing.append(time_s)
    more = rest if following is None else chain([following], rest)
    found.wrong += [_unasked(change) for change in more if change.due_s <= until_s]
    return found


def _unasked(made: Change) -> str:
    return f"a change was made for {made.due_s:.3f} s that nobody asked for"


def _differs(shape: Shape, made: Change) -> Iterator[str]:
    wanted = (shape.rate_bits, shape.queue_bytes)
    was = (made.rate_bits, made.queue_bytes)
    if was != wanted:
        yield (
            f"the change at {made.due_s:.3f} s was to {was[0]} bit/s and {was[1]} B, "
            f"not to {wanted[0]} bit/s and {wanted[1]} B"
        )
    impairments = shape.impairments.to_json()
    if made.impairments not in (None, impairments):
        yield f"the change at {made.due_s:.3f} s was to {made.impairments}, not to {impairments}"
