"""Where the threshold of a density will lie, from what earlier steps have shown. Pure arithmetic.

Thresholds are in units of b = mean |p|, so that a gradient that grows or shrinks as a whole changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite, log

_LEAST_SLACK, _MOST_SLACK = 0.1, 31.0
_FREE, _MOST_FREE = 0.0025, 4.0
"""A share of the vector that costs next to nothing to take out besides; at most so many times the target."""
_EAGER, _CALM = 0.85, 0.98
"""The slack becomes so much smaller with every step that has enough: until the first miss, and after it. A
miss doubles it, so that in the long run 3 steps in 100 miss: 1 / (1 + ln 2 / −ln 0.98)."""


@dataclass(slots=True)
class Aim:
    """``ratio``: the last step's threshold over b, above which the share ``density`` of all elements was.

    ``slope``: how much further up there were e times fewer; 1 for a Laplace distribution. ``slack``:
    how many more than wanted are taken out, over those wanted; ``fall``: its factor after a step that
    had enough. ``density`` 0: nothing is known yet.
    """

    ratio: float = 0.0
    slope: float = 1.0
    density: float = 0.0
    slack: float = 1.0
    fall: float = _EAGER

    def expected(self, density: float) -> float:
        """The threshold for ``density`` in (0, 1), over b.

        At first that of a Laplace distribution: P(|p| > t) = exp(−t/b), so t = −b·ln k. Later ln k is
        taken to fall in straight lines: from 0 at threshold 0 to the last one, and on from there with
        the slope that was found there.
        """
        if not self.density:
            return -log(density)
        if density <= self.density:
            return self.ratio + self.slope * log(self.density / density)
        return self.ratio * log(density) / log(self.density)

    def cautious(self, density: float) -> float:
        """A threshold, over b, that at least the share ``density`` is probably above."""
        wanted = 1 + max(self.slack, min(_FREE / density, _MOST_FREE))
        expected = self.expected(density)
        return max(expected - self.slope * log(wanted), expected / wanted)

    def missed(self) -> None:
        """Too few were above the cautious threshold. At first that is the distribution's fault."""
        if self.density:
            self.slack, self.fall = min(2 * self.slack, _MOST_SLACK), _CALM

    def met(self) -> None:
        """There were enough."""
        self.slack = max(self.fall * self.slack, _LEAST_SLACK)

    def learn(self, ratio: float, density: float, slope: float | None) -> None:
        """What the step's threshold was in the end; ``slope`` None: it was not seen."""
        if 0 < density < 1 and isfinite(ratio):
            self.ratio, self.density = ratio, density
        if slope is not None and 0 < slope < float("inf"):
            self.slope = slope

    def state(self) -> dict[str, float]:
        """All of it."""
        return asdict(self)

    @classmethod
    def load(cls, state: Mapping[str, float]) -> Aim:
        """What ``state`` returned."""
        return cls(**state)
