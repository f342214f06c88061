"""Steps of a job that marks none, inferred from what its links carried. Pure.

Synchronous training sends (nearly) the same bytes in every step, whatever the links' rates, and
pauses while it computes. So on an axis of bytes its pauses come at equal distances: the bytes of a
step are found by the autocorrelation of the pauses, which are then followed one by one. Fast links
pause within an all-reduce, too, when they wait for a slow one: so that must pause with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from testbed.records.link_log import Array, LinkTraffic

PAUSED = 0.15
"""A link that was used less than this, of what it was used at most, stood still."""
_UNLIKE = 0.1
"""Neighbours whose use differs by more than this are not alike."""
_HARDLY = 0.002
"""Bits before the first such share, and after all but the last, are no part of steps."""

_AFTER_S = 0.5
"""So much of what follows the last bits is the last step's pause."""


class Pauses:
    """Points (bits, paused seconds, time) with even flow between; shape (n,), ascending."""

    def __init__(self, traffic: LinkTraffic, shares: Array) -> None:
        """Find the pauses of ``traffic``, which has at least one sample that carried something.
        ``shares``: for each interval between two of its times, the share in which the links
        considered were used."""
        total = traffic.total_bits
        first = int(np.searchsorted(total, _HARDLY * total[-1], "right")) - 1
        done_s = traffic.times_s[np.searchsorted(total, (1 - _HARDLY) * total[-1])]
        last = int(np.searchsorted(traffic.times_s, done_s + _AFTER_S, "right")) - 1
        cells = slice(first, last)
        times, bits = traffic.times_s[first : last + 1], total[first : last + 1]
        use = shares[cells]
        self.sample_s = float(np.median(np.diff(times)))
        self.full = float(np.percentile(use[np.diff(bits) > 0], 95)) or 1.0
        """The share of their time in which the links were busy when the job sent."""
        self.use: Array = np.minimum(1.0, use / self.full)
        """Use of the links in each sample, as a share of their highest use."""
        self.ends_s: Array = times[1:]
        """The end of each sample."""
        points = _points(times, bits, self.use)
        self.bits, self.paused_s, self.times_s = points
        self.length_bits = float(bits[-1] - bits[0])
        self.share = float(self.paused_s[-1] / max(1e-9, times[-1] - times[0]))
        """The share of the time that was paused."""

    def between(self, from_bits: Array, to_bits: Array) -> Array:
        """Seconds paused between such amounts of bits, any shape."""
        paused: Array = np.interp(to_bits, self.bits, self.paused_s) - np.interp(
            from_bits, self.bits, self.paused_s
        )
        return paused

    def at_s(self, bits: Array) -> Array:
        """When so many bits had been carried."""
        return np.interp(bits, self.bits, self.times_s)

    def middle(self, most: int) -> tuple[float, float]:
        """From and to how many bits: all, or in their middle about ``most`` samples' worth."""
        left = 0.5 * self.length_bits * max(0.0, 1 - most / len(self.use))
        return float(self.bits[0] + left), float(self.bits[-1] - left)

    def density(self, count: int, from_bits: float, to_bits: float) -> Array:
        """Seconds paused in each of ``count`` equal parts of the bits, shape (count,)."""
        edges = np.linspace(from_bits, to_bits, count + 1)
        return self.between(edges[:-1], edges[1:])


def _points(times: Array, bits: Array, use: Array) -> tuple[Array, Array, Array]:
    """Within a sample that was used in part, bits lie beside those of the neighbour that was used
    more.

    So a burst that ends in it ends where its bits are done; where both neighbours are alike they
    are spread evenly.
    """
    lengths = np.diff(times)
    around = np.concatenate([use[:1], use, use[-1:]])
    before, after = around[:-2], around[2:]
    ends, begins = after < before - _UNLIKE, before < after - _UNLIKE
    # where in the sample its first and last bit are
    opens = np.where(begins, (1 - use) * lengths, 0.0)
    closes = np.where(ends, use * lengths, lengths)
    paused = np.concatenate([[0.0], np.cumsum((1 - use) * lengths)])
    rows = np.stack(
        [
            np.stack([bits[:-1], paused[:-1], times[:-1]]),
            np.stack([bits[:-1], np.where(begins, paused[1:], paused[:-1]), times[:-1] + opens]),
            np.stack([bits[1:], np.where(ends, paused[:-1], paused[1:]), times[:-1] + closes]),
        ]
    )
    points = rows.transpose(2, 0, 1).reshape(-1, 3)
    points = np.concatenate([points, [[bits[-1], paused[-1], times[-1]]]])
    # strictly ascending, or a pause would be at no one place: by no more than a bit in a million
    slack = (bits[-1] - bits[0]) * 1e-6 * np.arange(len(points)) / len(points)
    return points[:, 0] + slack, points[:, 1], points[:, 2]


LEAST_STEPS = 6
LEAST_SAMPLES = 4
"""The fewest samples in a step: a shorter step could as well be several."""
LEAST_CONFIDENCE = 0.6
FEW_STEPS, LEAST_OF_FEW = 15, 0.9
"""The confidence that fewer than so many steps must reach: a few can be alike by chance."""
LEAST_COVERED = 0.5
"""The least share of all bits that the steps must cover."""
CONSTANT = 0.05
"""Steps that differ by no more than this from their median, in bytes, are alike."""
_AROUND = 0.25
"""A share of a step's bytes: a pause is looked for so far from where it should be."""
_BY_CHANCE = CONSTANT / _AROUND
_HALF = 0.04
"""Half the width of a pause, as a share of a step's bytes."""
_BEGUN = 0.2
"""A share of a pause: the part before it may be noise."""
_LEAST_PAUSED = 0.01
_LEAST_CORRELATION = 0.2
_ALIKE = 0.8
"""A shorter distance is the step's if it correlates at least so well as the best."""
_LAGS = np.arange(12, 26)
"""In parts: distances tried at each fineness, an octave and a little for its maxima."""
_MOST_SAMPLES = 150_000
"""The most samples from which a step's bytes are found, in the middle of a longer run: transforms
of a day would take a gigabyte."""
_MISSED = 3
"""So many pauses in a row that are not where they should be are the end of the steps."""

_RESTS, _WIDTH = 0.1, 0.1
"""About the ends of steps the busiest direction must be used less than usually by this share, over
so much of a step or two samples."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """Ends of steps: ``ends_s[0]`` is the begin of the first. Empty: none were found."""

    ends_s: tuple[float, ...]
    confidence: float | None
    """The share of pauses, each looked for within a quarter of a step, that came when 5 % of a
    step's bytes at most were lacking or too many, above what chance alone would have given; from 0
    to 1. None: nothing to follow."""
    reason: str


def infer(traffic: LinkTraffic, rtt_s: float = 0.0) -> Inferred:
    """Find the steps in what a run's links carried: in the pauses of them all or, where a slow link
    hardly pauses since computation hides behind it, in those of any, or in those of each as far as
    others pause, too.

    ``rtt_s``: a message's time to a peer and back, for which rounds of an exchange may wait."""
    if len(traffic) < LEAST_STEPS * LEAST_SAMPLES or traffic.total_bits[-1] <= 0:
        return _nothing("the links' records are too few")
    uses = traffic.uses()
    tried = []
    for use in (traffic.use(), uses.min(0), uses.prod(0)):
        pauses = Pauses(traffic, use)
        inferred = _within(pauses, rtt_s)
        if inferred.ends_s and _waiting(traffic, np.array(inferred.ends_s), pauses.sample_s):
            return _nothing(
                "the busiest link does not pause with the others, which may wait for it more than"
                " once in a step",
                0.0,
            )
        if inferred.ends_s:
            return inferred
        tried.append(inferred)
    return tried[0]


def _within(pauses: Pauses, rtt_s: float) -> Inferred:
    if pauses.share < _LEAST_PAUSED:
        return _nothing("the links never paused")
    period = _period(pauses)
    if period is None:
        return _nothing("the links' pauses do not come after equal numbers of bytes")
    ends = _follow(pauses, period)
    return _judged(pauses, np.array(ends), rtt_s)


def _judged(pauses: Pauses, ends: Array, rtt_s: float) -> Inferred:
    """``ends``: bits carried by the end of each step."""
    steps = np.diff(ends)
    if len(steps) < LEAST_STEPS:
        return _nothing(f"only {len(steps)} steps of equal bytes follow one another")
    size = float(np.median(steps))
    constant = float(np.mean(np.abs(steps / size - 1) <= CONSTANT))
    confidence = max(0.0, (constant - _BY_CHANCE) / (1 - _BY_CHANCE))
    # a little before the pause: what trickles in it is none of the step's bytes
    times = np.maximum.accumulate(pauses.at_s(ends - 0.005 * size))
    if steps.sum() < LEAST_COVERED * pauses.length_bits:
        return _nothing("what recurs carries less than half of the bytes", 0.0)
    if confidence < (LEAST_OF_FEW if len(steps) < FEW_STEPS else LEAST_CONFIDENCE):
        return _nothing("the bytes between the links' pauses vary too much", confidence)
    if _blurred(pauses, ends, times):
        return _nothing("the steps are too short for the links' samples to tell them apart", 0.0)
    if np.median(pauses.between(ends - _HALF * size, ends + _HALF * size)) < rtt_s:
        return _nothing(
            "the links pause no longer than a message takes to a peer and back, for which each"
            " round of an exchange may wait",
            0.0,
        )
    said = (
        f"{constant:.0%} of {len(steps)} steps carry {size / 8e6:.3g} MB over all links, within 5 %"
    )
    return Inferred(tuple(map(float, times)), confidence, f"Inferred: {said}.")


def _nothing(why: str, confidence: float | None = None) -> Inferred:
    return Inferred((), confidence, f"Steps were not found: {why}.")


def _waiting(traffic: LinkTraffic, ends_s: Array, sample_s: float) -> bool:
    """Return whether the busiest direction goes on where steps end, so that others only wait for
    it: they do in every round of an all-reduce, and computation would stop them all."""
    busy_s = traffic.busiest_s(ends_s[0], ends_s[-1])
    lengths = np.maximum(np.diff(ends_s), 1e-9)

    def use(from_s: Array, to_s: Array) -> Array:
        used = np.interp(to_s, traffic.times_s, busy_s) - np.interp(from_s, traffic.times_s, busy_s)
        mean: Array = np.mean(used / (to_s - from_s), axis=-1)
        return mean

    half = np.maximum(_WIDTH / 2 * lengths, sample_s)
    middles = ends_s[:-1] + np.linspace(-0.1, 0.25, 15)[:, None] * lengths
    rest = use(middles - half, middles + half).min()
    return bool(rest > (1 - _RESTS) * use(ends_s[:-1], ends_s[:-1] + lengths))


def _blurred(pauses: Pauses, ends: Array, ends_s: Array) -> bool:
    """Return whether an apparent step may be several steps, the beat of steps with the samples.

    Steps shorter than two samples leave no two in a row without traffic. Where there are none
    either, the links must have been full between the pauses, and a step's pause its only one.
    """
    if np.median(np.diff(ends_s)) < LEAST_SAMPLES * pauses.sample_s:
        return True
    still = pauses.use < PAUSED
    still_s = pauses.ends_s[1:][still[1:] & still[:-1]] - pauses.sample_s
    if len(np.unique(np.searchsorted(ends_s, still_s))) >= len(ends_s) / 2:
        return _paused_within(pauses, ends, _ALIKE)
    return pauses.full < 0.85 or _paused_within(pauses, ends, 0.5)


def _paused_within(pauses: Pauses, ends: Array, share: float) -> bool:
    """Return whether steps pause in their midst for such a share of the time as at their ends."""
    sizes = np.diff(ends)[:, None]
    places = ends[:-1, None] + np.linspace(0.0, 0.85, 86)[None, :] * sizes
    length = pauses.between(places - _HALF * sizes, places + _HALF * sizes).mean(axis=0)
    return bool(length[15:].max() > share * length[0])


def _period(pauses: Pauses) -> float | None:
    """Bits from pause to pause: the shortest distance that recurs nearly as well as any."""
    candidates = [
        candidate for parts in _finenesses(pauses) for candidate in _recurring(pauses, parts)
    ]
    best = max((strength for _, strength in candidates), default=0.0)
    if best < _LEAST_CORRELATION:
        return None
    return min(distance for distance, strength in candidates if strength >= _ALIKE * best)


def _finenesses(pauses: Pauses) -> Iterator[int]:
    """Numbers of parts: the longest step has ``_LAGS`` of the first; in octaves."""
    parts = LEAST_STEPS * int(_LAGS[-1])
    most = min(len(pauses.use), _MOST_SAMPLES) / LEAST_SAMPLES * int(_LAGS[-1])
    while parts <= 2 * most:
        yield parts
        parts *= 2


def _recurring(pauses: Pauses, parts: int) -> Iterator[tuple[float, float]]:
    """Distances in bits at which pauses recur, each with its autocorrelation."""
    from_bits, to_bits = pauses.middle(_MOST_SAMPLES)
    density = _levelled(pauses.density(parts, from_bits, to_bits))
    density -= density.mean()
    spectrum = np.abs(np.fft.rfft(density, 2 * parts)) ** 2
    correlation = np.fft.irfft(spectrum)[: _LAGS[-1] + 2]
    correlation *= parts / (parts - np.arange(len(correlation)))
    if correlation[0] <= 0:
        return
    for lag in _LAGS:
        before, here, after = correlation[lag - 1 : lag + 2] / correlation[0]
        if here > 0 and here >= before and here > after:
            shift = 0.5 * (before - after) / (before - 2 * here + after)
            yield (lag + shift) * (to_bits - from_bits) / parts, float(here)


def _levelled(density: Array) -> Array:
    """Long pauses count as usual ones; then each part has a share of its neighbours'."""
    paused = np.sort(density[density > 0])
    half = np.searchsorted(np.cumsum(paused), 0.5 * paused.sum())
    level = np.minimum(density, 2 * paused[min(half, len(paused) - 1)])
    return np.convolve(level, [0.25, 0.5, 0.25], "same")


def _follow(pauses: Pauses, period: float) -> list[float]:
    """Bits carried by each end of a step, from where pauses are surest, forwards and backwards."""
    first, usual = _anchor(pauses, period)
    forward = list(_walk(pauses, first, period, usual))
    backward = list(_walk(pauses, first, -period, usual))
    return [*reversed(backward), first, *forward]


def _anchor(pauses: Pauses, period: float) -> tuple[float, float]:
    """The first of four pauses in a row that are long, near the middle; how long."""
    middle = pauses.bits[0] + 0.5 * pauses.length_bits
    starts = middle + np.linspace(-2.0, -1.0, 100) * period
    places = starts[:, None] + np.arange(4)[None, :] * period
    about = pauses.between(places - 3 * _HALF * period, places + 3 * _HALF * period)
    row = places[int(np.argmax(np.min(about, axis=1) + 0.1 * np.median(about, axis=1)))]
    near = row[:, None] + np.linspace(-3, 3, 61)[None, :] * _HALF * period
    length = pauses.between(near - _HALF * period, near + _HALF * period)
    best = near[1, int(np.argmax(length[1]))]
    return _begin(pauses, float(best), period), float(np.median(length.max(axis=1)))


def _walk(pauses: Pauses, at: float, period: float, usual_s: float) -> Iterator[float]:
    """From pause to pause while they come; ``period`` is negative backwards."""
    missed: list[float] = []
    size, bits = abs(period), pauses.bits
    while bits[0] <= (expected := at + np.copysign(size, period)) <= bits[-1]:
        places = expected + np.linspace(-_AROUND, _AROUND, 101) * size
        length = pauses.between(places - _HALF * size, places + _HALF * size)
        nearness = 1 - 0.1 * np.abs(places - expected) / size  # decides only between equals
        best = int(np.argmax(length * nearness))
        if length[best] < 0.2 * usual_s:
            at = float(expected)
            missed.append(at)
            if len(missed) == _MISSED:
                return
            continue
        begun = _begin(pauses, float(places[best]), size)
        yield from missed
        missed.clear()
        yield begun
        drifted = size + 0.1 * (abs(begun - at) - size)
        size = float(np.clip(drifted, 0.8 * abs(period), 1.25 * abs(period)))
        at = begun


def _begin(pauses: Pauses, middle: float, size: float) -> float:
    """Bits carried when the pause around ``middle`` began: it may be interrupted."""
    at = middle + np.linspace(-_HALF, _HALF, 81) * size
    paused = pauses.between(np.full_like(at, at[0]), at)
    return float(at[np.searchsorted(paused, _BEGUN * paused[-1])])
