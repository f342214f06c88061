"""The Laplacian threshold (Chen, Liu, Han 2021): estimate, then correct until the count is right.

Thresholds are in units of b = mean |p|, so that a gradient that grows or shrinks as a whole changes
nothing.

Gradients after error feedback are close to a Laplace distribution, whose maximum-likelihood scale
is b = mean |p|, so that t = −b·ln k is about the threshold of density k. On real gradients that
alone finds 0.01 to 40 times as many elements as it should: the correction is the method. Here it
takes

    one pass    takes out all elements above a threshold somewhat lower than expected (``aim``);
    the rest    is looked for among these few, and is as good as free.

The pass that made p has given b. From the second step on, the last step's threshold over b takes
the place of the estimate. Where the pass finds too few, one that counts leading bits tells exactly
where to look, and a third takes them out: never more than that, whatever the distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from math import isfinite, log
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from testbed.compress import gradient_stats, kernels
from testbed.compress.base import AccumulatedGradient, Options, Selection, Sparse
from testbed.compress.kernels.base import Fetching, Workspace, fetched
from testbed.compress.kernels.compilation import DIGITS
from testbed.compress.selectors import CountSelector
from testbed.compress.selectors.threshold_search import (
    LEAST_MAGNITUDE,
    Candidates,
    ProbeWindow,
    ThresholdPosition,
    chosen,
    guessed,
    narrowed,
    narrowing,
    parted,
    probe,
    rounded,
)

if TYPE_CHECKING:
    from torch import Tensor


_MOST_SLACK = 31.0
_FREE, _MOST_FREE = 0.0025, 4.0
"""A share of the vector that costs next to nothing to take out besides; at most so many times the
target."""


class _SlackRule(NamedTuple):
    """How the slack follows misses. ``falls``: its factor for a step that had enough, until the
    first miss and after it; ``least``: below it no more. ``rises``: its factor for a miss, after
    which it is at least ``raised``."""

    falls: tuple[float, float]
    least: float
    rises: float
    raised: float


_HOST = _SlackRule((0.85, 0.98), least=0.1, rises=2.0, raised=0.0)
"""In the long run 3 steps in 100 miss: 1 / (1 + ln 2 / −ln 0.98)."""
_SHORT = _SlackRule((0.52, 0.92), least=0.025, rises=2.0, raised=0.0)
_LONG = _SlackRule((0.52, 0.85), least=0.025, rises=1.5, raised=0.075)
_LONG_FROM = 1_000_000
"""On an accelerator it takes as long to choose among few as to read them all, unless these are many
millions. So the slack falls sooner, and to less than the tolerance, where no correction follows.
Counts of long vectors, from so many elements on, are predicted better: soon after a miss, too."""


@dataclass(slots=True)
class ThresholdPredictor:
    """``ratio``: the last step's threshold over b, above which the share ``density`` of all
    elements was.

    ``slope``: how much further up there were e times fewer; 1 for a Laplace distribution.
    ``slack``: how many more than wanted are taken out, over those wanted; ``misses``: how often
    too few were. ``density`` 0: nothing is known yet.
    """

    ratio: float = 0.0
    slope: float = 1.0
    density: float = 0.0
    slack: float = 1.0
    misses: float = 0.0

    def expected(self, density: float) -> float:
        """The threshold for ``density`` in (0, 1), over b.

        At first that of a Laplace distribution: P(|p| > t) = exp(−t/b), so t = −b·ln k. Later ln k
        is taken to fall in straight lines: from 0 at threshold 0 to the last one, and on from there
        with the slope that was found there.
        """
        if not self.density:
            return -log(density)
        if density <= self.density:
            return self.ratio + self.slope * log(self.density / density)
        return self.ratio * log(density) / log(self.density)

    def cautious(self, density: float, *, few_are_free: bool = True) -> float:
        """A threshold, over b, that at least the share ``density`` is probably above."""
        free = min(_FREE / density, _MOST_FREE) if few_are_free else 0.0
        wanted = 1 + max(self.slack, free)
        expected = self.expected(density)
        return max(expected - self.slope * log(wanted), expected / wanted)

    def missed(self, rule: _SlackRule = _HOST) -> None:
        """Too few were above the cautious threshold. At first that is the distribution's fault."""
        if self.density:
            self.slack = min(max(rule.rises * self.slack, rule.raised), _MOST_SLACK)
            self.misses += 1

    def met(self, rule: _SlackRule = _HOST) -> None:
        """There were enough."""
        self.slack = max(rule.falls[self.misses > 0] * self.slack, rule.least)

    def update(self, ratio: float, density: float, slope: float | None) -> None:
        """Take in what the step's threshold was in the end; ``slope`` None: it is not known."""
        if 0 < density < 1 and isfinite(ratio):
            self.ratio, self.density = ratio, density
        if slope is not None and 0 < slope < float("inf"):
            self.slope = slope


def _slack_rule(few_are_free: bool, size: int) -> _SlackRule:
    if few_are_free:
        return _HOST
    return _SHORT if size < _LONG_FROM else _LONG


def _first(flat: Tensor) -> Tensor:
    """The index of the first element."""
    return flat.new_zeros(1).long()


def _zero(size: int, index: Tensor, value: Tensor) -> Sparse:
    """One element of a vector of zeros."""
    return Sparse(size, index, value, selection=Selection(passes=1.0))


_ROOM = 2
"""So many times as much room as elements that are expected."""
_SMALL = 512
"""Vectors of so many elements or fewer are selected from without tolerance."""


class LaplaceOptions(Options):
    """Options of ``laplace``."""

    tolerance: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.05, description="Most that the number of elements may differ by, as a share of it."
    )
    fit_every: Annotated[int, Field(ge=0, le=1_000_000_000)] = Field(
        0,
        description="Every so many steps, from the first on, ``fit`` is set to how well the "
        "distribution fits; 0: never.",
    )
    correction: Literal["fast", "bisection"] = Field(
        "fast",
        description="fast: ours, from the last step's threshold. bisection: the paper's, from the "
        "estimate in every step; each probe reads the whole vector.",
    )


class Laplace(CountSelector[LaplaceOptions]):
    """``density · n`` elements of greatest magnitude, give or take the share ``tolerance`` of them.

    Zeros are never sent for their own sake: where fewer elements than asked for are not 0, these
    are sent. Where equal magnitudes leave no threshold within the tolerance, exactly ``density ·
    n`` are sent, of equal ones the first. Small vectors are selected from exactly.
    """

    name, model = "laplace", LaplaceOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._aim, self._steps = ThresholdPredictor(), 0
        self._left, self._kept = Workspace(), Workspace()
        self.fit: gradient_stats.Fit | None = None

    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        """Dense when every element is asked for. Every so many steps ``fit`` is made anew."""
        every = self.options.fit_every
        if every and self._steps % every == 0:
            self.fit = gradient_stats.report(given.flat, rng, given.sum_abs)
        self._steps += 1
        return super().select(given, density, rng)

    def choose(self, given: AccumulatedGradient, count: int, rng: Random) -> Sparse:
        """About ``count`` elements; one zero of a vector of zeros."""
        del rng
        flat = given.flat
        if not given.sum_abs:
            return _zero(flat.numel(), _first(flat), flat[:1].clone())
        window = self._window(given, count)
        if self.options.correction == "bisection":
            sent, selection = self._bisected(given, window)
        else:
            sent, selection = fetched(self._selected(given, window))
        return Sparse(flat.numel(), sent.indices, sent.values, selection=selection)

    @property
    def queues(self) -> bool:
        """Return whether ``choosing`` can be used: not where fits or probes are wanted."""
        return not self.options.fit_every and self.options.correction == "fast"

    def selecting(self, given: AccumulatedGradient, density: float) -> Fetching[Sparse]:
        """As ``select``."""
        self._steps += 1
        return super().selecting(given, density)

    def choosing(self, given: AccumulatedGradient, count: int) -> Fetching[Sparse]:
        """Enough elements come to the host, where those that are sent are chosen among them."""
        if not given.sum_abs:
            indices, values = yield [_first(given.flat), given.flat[:1]]
            return _zero(given.flat.numel(), indices, values)
        window = self._window(given, count)
        sent, selection = yield from self._selected(given, window, queued=True)
        return Sparse(given.flat.numel(), sent.indices, sent.values, selection=selection)

    def _window(self, given: AccumulatedGradient, count: int) -> ProbeWindow:
        small = given.flat.numel() <= _SMALL
        return ProbeWindow.around(count, 0.0 if small else self.options.tolerance)

    def state(self) -> dict[str, float]:
        """Where the threshold was, and the number of steps."""
        return {**asdict(self._aim), "steps": float(self._steps)}

    def load(self, state: Mapping[str, float]) -> None:
        """Go on from there."""
        aim = dict(state)
        self._steps = int(aim.pop("steps"))
        self._aim = ThresholdPredictor(**aim)

    def _selected(
        self, given: AccumulatedGradient, window: ProbeWindow, *, queued: bool = False
    ) -> Fetching[tuple[Candidates, Selection]]:
        """For a vector that is not all zeros and a count below its size; on the host, if
        ``queued``."""
        flat, aim, operations = given.flat, self._aim, kernels.of(given.flat)
        size, scale = flat.numel(), given.sum_abs / flat.numel()
        free = operations.few_are_free
        rule = _slack_rule(free, size)
        expected = aim.cautious(window.aim / size, few_are_free=free)
        low = max(rounded(expected * scale), LEAST_MAGNITUDE)
        room = int(_ROOM * (1 + aim.slack) * window.aim) + _SMALL if queued else 0
        left, passes = (yield from self._above(flat, low, room)), 2.0
        if left.count >= window.least or low == LEAST_MAGNITUDE:
            aim.met(rule)
        else:
            aim.missed(rule)
            position = yield from narrowing(operations, flat, window.aim, 0, ThresholdPosition())
            low = max(position.edge(1), LEAST_MAGNITUDE)
            room = position.above + position.tied if queued else 0
            left, passes = (yield from self._above(flat, low, room)), 4.0
        if left.count <= window.most:
            aim.update(low / scale, left.count / size, None)
            return left, Selection(passes, low)
        sent, threshold, ties, reads = self._corrected(left, low, scale, window)
        if sent.count < left.count:
            slope = (threshold - low) / scale / log(left.count / sent.count)
            aim.update(threshold / scale, sent.count / size, slope)
        return sent, Selection(passes + reads * left.count / size, threshold, ties)

    def _bisected(
        self, given: AccumulatedGradient, window: ProbeWindow
    ) -> tuple[Candidates, Selection]:
        """Likewise, by halving the interval from 0 to the greatest magnitude, with −b·ln k as the
        first probe."""
        flat, operations = given.flat, kernels.of(given.flat)
        low, high, probes = 0.0, given.max_abs, 0
        threshold = rounded(-given.sum_abs / flat.numel() * log(window.aim / flat.numel()))
        while low < threshold < high:
            probes += 1
            count = operations.count_above(flat, threshold)
            if window.holds(count):
                low = threshold
                break
            low, high = (threshold, high) if count > window.most else (low, threshold)
            threshold = rounded((low + high) / 2)
        low = max(low, LEAST_MAGNITUDE)
        left = Candidates(*operations.select_above(flat, low, self._left))
        passes = probes + 2.0
        if left.count <= window.most:
            return left, Selection(passes, low)
        position = ThresholdPosition()
        for digit in range(len(DIGITS)):
            position = narrowed(operations, left.values, window.aim, digit, position)
        threshold = position.edge(len(DIGITS))
        sent = parted(chosen(operations, left, threshold, self._kept), position, window.aim)
        passes += (len(DIGITS) + 1) * left.count / flat.numel()
        return sent, Selection(passes, threshold, position.tied - 1)

    def _above(self, flat: Tensor, low: float, room: int) -> Fetching[Candidates]:
        """All from ``low`` on; on the host, if there is a ``room`` for them."""
        operations = kernels.of(flat)
        if not room:
            return Candidates(*operations.select_above(flat, low, self._left))
        return Candidates(*(yield from operations.taking(flat, low, room)))

    def _corrected(
        self, left: Candidates, low: float, scale: float, window: ProbeWindow
    ) -> tuple[Candidates, float, int, int]:
        """Return what is sent of more than enough, its least magnitude, ties at that, and readings
        of ``left``."""
        operations = kernels.of(left.values)
        slope = self._aim.slope * scale
        threshold = guessed(left, low, slope, window.aim)
        sent = chosen(operations, left, threshold, self._kept)
        if window.holds(sent.count):
            return sent, threshold, 0, 1
        tried, more = (threshold, sent.count), sent.count > window.most
        above, below = (tried, None) if more else ((low, left.count), tried)
        count = partial(operations.count_above, left.values)
        probed, probes = probe(count, above, below, slope, window)
        if probed is not None:
            return chosen(operations, left, probed, self._kept), probed, 0, probes + 2
        position = ThresholdPosition()
        for digit in range(len(DIGITS)):
            position = narrowed(operations, left.values, window.aim, digit, position)
        threshold = position.edge(len(DIGITS))
        sent = parted(chosen(operations, left, threshold, self._kept), position, window.aim)
        return sent, threshold, position.tied - 1, probes + len(DIGITS) + 2
