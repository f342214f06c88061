"""How many of a comparison's runs are over, and how long the rest will take."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


class Remaining:
    """Of runs of ``algorithms`` (a name each, in order), ``processes`` at a time. Seconds of real time."""

    def __init__(self, algorithms: Sequence[str], processes: int = 1) -> None:
        self._algorithms, self._processes = algorithms, processes
        self.took_s: list[float | None] = [None] * len(algorithms)
        """By place: how long a run took, as far as that is known."""
        self._over: set[int] = set()
        self._begun: float | None = None

    def begun(self, now: float) -> None:
        """A run begins, alone; ``now``: on the monotonic clock."""
        self._begun = now

    def over(self, place: int, took_s: float | None) -> None:
        """The run at ``place`` has ended."""
        self._over.add(place)
        self.took_s[place], self._begun = took_s, None

    def elapsed_s(self, now: float) -> float | None:
        """Since the run that goes on alone began; None without one."""
        return None if self._begun is None else now - self._begun

    def left_s(self, now: float) -> float | None:
        """What is left: each algorithm's mean, of an unknown one the mean of all; None when no run is over."""
        known: dict[str, list[float]] = {}
        for name, took_s in zip(self._algorithms, self.took_s, strict=True):
            if took_s is not None:
                known.setdefault(name, []).append(took_s)
        if not known:
            return None
        other = fmean(took_s for several in known.values() for took_s in several)
        needed = [
            fmean(known.get(name, [other]))
            for place, name in enumerate(self._algorithms)
            if place not in self._over
        ]
        gone = min(self.elapsed_s(now) or 0.0, needed[0]) if needed else 0.0
        return (sum(needed) - gone) / max(1, min(self._processes, len(needed)))

    def words(self, now: float) -> str:
        """Such as ``3 of 10 runs done, about 2 min left``."""
        done = f"{len(self._over)} of {len(self._algorithms)} runs done"
        left_s = self.left_s(now)
        if left_s is None or len(self._over) == len(self._algorithms):
            return done
        return f"{done}, about {duration(left_s)} left"


def duration(seconds: float) -> str:
    """Seconds as people say them: 45 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
