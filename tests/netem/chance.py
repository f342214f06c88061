"""Assertions about what chance makes, whose false alarms do not add up to anything.

A figure must lie where 99.9 % of what chance makes lies, so that in every thousand assertions one would fail for
nothing. Where the kernel's netem takes a seed, the numbers are the same every time; elsewhere they are fresh. Either
way a trial that was unlucky is repeated once with other numbers: what is right fails twice in a million trials, and
what is wrong fails twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from math import log, sqrt

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


def furthest(count: int, chance: float = 1e-7) -> float:
    """Beyond how much shares of so many draws and of what they are drawn from are apart, in one direction, once in
    1 / ``chance`` times at most: the bound of Dvoretzky, Kiefer, Wolfowitz and Massart."""
    return sqrt(log(1 / chance) / (2 * count))


def farther_below(some: Iterable[float], others: Iterable[float]) -> float:
    """By how much the share of ``some`` below any value exceeds that of ``others`` at most."""
    ordered, compared = sorted(some), sorted(others)
    return max(
        (rank + 1) / len(ordered) - bisect_right(compared, value) / len(compared)
        for rank, value in enumerate(ordered)
    )


def by_chance(lines: Lines, trial: Callable[[int | None], None]) -> None:
    """Carry out ``trial`` with a seed (None: this kernel takes none), and once more where it was unlucky."""
    seeded = "netem-seed" in lines.agent.capabilities()
    first, second = (1, 2) if seeded else (None, None)
    try:
        trial(first)
    except Unlikely:
        trial(second)
