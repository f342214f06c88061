"""Assertions about what chance makes, whose false alarms do not add up to anything.

A figure must lie where 99.9 % of what chance makes lies, so that in every thousand assertions one would fail for
nothing. Where the kernel's netem takes a seed, the numbers are the same every time; elsewhere they are fresh. Either
way a trial that was unlucky is repeated once with other numbers: what is right fails twice in a million trials, and
what is wrong fails twice.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from lines_rig import Lines

SURE = 3.29
"""So many standard deviations hold 99.9 % of what chance makes."""


class Unlikely(AssertionError):
    """Chance makes such a figure once in a thousand times."""


def expect(found: float, mean: float, deviation: float, slack: float = 0.0) -> None:
    """Raise Unlikely unless ``found`` is inside the 99.9 % interval, give or take ``slack``."""
    if abs(found - mean) > SURE * deviation + slack:
        raise Unlikely(f"{found} is not within {SURE} * {deviation:g} + {slack:g} of {mean:g}")


def expect_share(found: float, share: float, of: int) -> None:
    """The same for a count that follows a binomial distribution."""
    expect(found, share * of, sqrt(of * share * (1 - share)), 1)


def by_chance(lines: Lines, trial: Callable[[int | None], None]) -> None:
    """Carry out ``trial`` with a seed (None: this kernel takes none), and once more where it was unlucky."""
    seeded = "netem-seed" in lines.agent.capabilities()
    first, second = (1, 2) if seeded else (None, None)
    try:
        trial(first)
    except Unlikely:
        trial(second)
