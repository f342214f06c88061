"""What links could carry at best: a fluid through links whose rate changes, and no time lost anywhere.

With ``C(a, b)`` the integral of a link's asked rate and ``A(t)`` the bits that had come to it by ``t``, a
link that always works when something waits finishes ``W`` bits at the latest ``t`` for which
``C(s, t) = W - A(s)`` for some ``s`` (network calculus: the link is busy from that ``s`` to the end).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from testbed.scenario.shape import End

Bits = Callable[[End, float, float], float]
"""``bits(end, from_s, to_s)``: bits that a link direction was asked to carry between two times."""

_HORIZON_S = 86400.0
"""A link that is asked for nothing any more would take for ever: a day stands for that."""

_RESOLUTION_S = 1e-6
_GRID, _REFINED, _REFINEMENTS = 32, 8, 3


@dataclass(frozen=True, slots=True)
class Load:
    """``bits`` on the wire that ``link`` sends (or is sent) from ``start_s`` on."""

    link: str
    bits: float
    start_s: float


_Turn = tuple[Load, float]
"""A load from when its link turns to it, and when that has carried it."""


def serve(bits: Bits, end: End, start_s: float, amount: float) -> float:
    """When ``end``, working from ``start_s`` on, has carried ``amount`` bits; at most a day later."""
    span = 1e-3
    while bits(end, start_s, start_s + span) < amount:
        span *= 2
        if span > _HORIZON_S:
            return start_s + _HORIZON_S
    low, high = start_s, start_s + span
    while high - low > _RESOLUTION_S:
        middle = (low + high) / 2
        low, high = (middle, high) if bits(end, start_s, middle) < amount else (low, middle)
    return high


def uploads_done(bits: Bits, loads: Sequence[Load], server: str) -> float:
    """When the last byte of all ``loads`` has come to ``server``: over each up link, then its down link.

    What one link has to carry it carries one after the other, first in, first out.
    """
    turns = [turn for own in _by_link(loads) for turn in _in_turn(bits, "up", own)]

    def arrived(time_s: float) -> float:
        return sum(
            min(load.bits, bits(End(load.link, "up"), load.start_s, time_s))
            for load, _ in turns
            if time_s > load.start_s
        )

    times = [load.start_s for load, _ in turns], [left_s for _, left_s in turns]
    return _through(bits, End(server, "down"), arrived, sum(load.bits for load in loads), *times)


def downloads_done(bits: Bits, loads: Sequence[Load], server: str) -> float:
    """When all ``loads`` have come from ``server``: over its up link, then each down link.

    Those that begin at one time are a volley. Volleys leave one after the other; the server's link is shared in
    proportion to what each of a volley is still to be sent, so all of it leaves together.
    """
    amounts: dict[float, float] = {}
    for load in loads:
        amounts[load.start_s] = amounts.get(load.start_s, 0.0) + load.bits
    starts = sorted(amounts)
    volleys = [Load(server, amounts[start_s], start_s) for start_s in starts]
    turns = dict(zip(starts, _in_turn(bits, "up", volleys), strict=True))
    return max(_delivered(bits, own, turns) for own in _by_link(loads))


def _delivered(bits: Bits, loads: Sequence[Load], turns: Mapping[float, _Turn]) -> float:
    """When one link has carried its ``loads``; ``turns``: of the volleys that they are of."""
    mine = [(load, *turns[load.start_s]) for load in loads]

    def arrived(time_s: float) -> float:
        return sum(
            load.bits / volley.bits
            * min(volley.bits, bits(End(volley.link, "up"), volley.start_s, time_s))
            for load, volley, _ in mine
            if time_s > volley.start_s
        )  # fmt: skip

    times = [volley.start_s for _, volley, _ in mine], [left_s for _, _, left_s in mine]
    total = sum(load.bits for load in loads)
    return _through(bits, End(loads[0].link, "down"), arrived, total, *times)


def _by_link(loads: Iterable[Load]) -> Iterable[list[Load]]:
    found: dict[str, list[Load]] = {}
    for load in loads:
        found.setdefault(load.link, []).append(load)
    return found.values()


def _in_turn(
    bits: Bits, direction: Literal["up", "down"], loads: Sequence[Load]
) -> Iterator[_Turn]:
    """``loads`` of one link, first in, first out."""
    free_s = -inf
    for load in sorted(loads, key=lambda load: load.start_s):
        turn = replace(load, start_s=max(load.start_s, free_s))
        free_s = serve(bits, End(load.link, direction), turn.start_s, load.bits)
        yield turn, free_s


def slowest_rate(bits: Bits, ends: Iterable[End], start_s: float, stop_s: float) -> float:
    """Lowest mean rate among ``ends`` between the two times, bit/s."""
    return min(bits(end, start_s, stop_s) / (stop_s - start_s) for end in ends)


def bottleneck_s(bits: Bits, loads: Mapping[End, float], start_s: float, stop_s: float) -> float:
    """Longest time that a link needs for its bits at its mean asked rate between the two times."""
    span = max(stop_s - start_s, _RESOLUTION_S)
    rates = {end: bits(end, start_s, start_s + span) / span for end in loads}
    return max(min(loads[end] / max(rates[end], 1e-9), _HORIZON_S) for end in loads)


def _through(
    bits: Bits,
    end: End,
    arrived: Callable[[float], float],
    total: float,
    starts: Iterable[float],
    ends: Iterable[float],
) -> float:
    """When ``total`` bits that come as ``arrived`` says have passed ``end``."""
    starts, last = sorted(starts), max(ends)
    begin = starts[0]

    def backlog_from(time_s: float) -> float:
        """Bits that the link must have been asked for since ``begin`` if it is busy since ``time_s``."""
        return bits(end, begin, time_s) + total - arrived(time_s)

    step = (last - begin) / _GRID
    candidates = [*starts, *(begin + step * index for index in range(_GRID + 1))]
    best = max(candidates, key=backlog_from)
    for _ in range(_REFINEMENTS):
        around = [best + step * (2 * index / _REFINED - 1) for index in range(_REFINED + 1)]
        best = max([best, *(t for t in around if begin <= t <= last)], key=backlog_from)
        step *= 2 / _REFINED
    return max(last, serve(bits, end, begin, backlog_from(best)))
