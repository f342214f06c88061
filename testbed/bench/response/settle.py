"""When and how far a controller answers a change of its link. Pure; docs/step-responses.md defines every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median

from testbed.bench.response.curves import Curve

WINDOW, NEAR, LEAST, BEFORE = 5, 0.2, 0.1, 10
"""Steps of the moving median; share of the way that counts as arrived; least relative change that counts as an
answer; steps before the change that make the level of before."""


@dataclass(frozen=True, slots=True)
class Response:
    """What followed a change."""

    responds: bool
    response_s: float | None
    """None: it does not respond, or has not settled by the end."""
    overshoot: float | None
    """Share of the way."""
    factor: float
    """k after settling over what it would have been."""


def response(curve: Curve, reference: Curve, change_s: float) -> Response | None:
    """The answer of ``curve`` to what happened at ``change_s``; ``reference``: the same run without the change.

    None where no step was begun before or fewer than four after.
    """
    count = min(len(curve.density), len(reference.density))
    away = [log(curve.density[i] / reference.density[i]) for i in range(count)]
    first = next((i for i in range(count) if curve.start_s[i] >= change_s), count)
    if first == 0 or count - first < 4:
        return None
    was = median(away[max(0, first - BEFORE) : first])
    settled = median(away[count - (count - first) // 4 :])
    way, smooth = settled - was, moving_median(away)[first:]
    if abs(way) < log(1 + LEAST):
        return Response(False, None, None, exp(way))
    after = arrival([abs(value - settled) <= NEAR * abs(way) for value in smooth])
    time_s = None if after is None else curve.start_s[first + after] - change_s
    return Response(True, time_s, overshoot(smooth, was, settled), exp(way))


def moving_median(values: Sequence[float]) -> list[float]:
    """Of each value, the two before and the two after it, as far as there are any."""
    half = WINDOW // 2
    return [median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def arrival(near: Sequence[bool]) -> int | None:
    """The place from which on all are true; None where the last is not."""
    last = max((i for i, each in enumerate(near) if not each), default=-1)
    return last + 1 if last + 1 < len(near) else None


def overshoot(values: Sequence[float], was: float, settled: float) -> float:
    """The largest excursion beyond ``settled`` as a share of the way to it; 0 where there is none."""
    return max(0.0, *((value - settled) / (settled - was) for value in values))
