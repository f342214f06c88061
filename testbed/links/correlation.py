"""What to tell netem so that a share with a correlation is that share.

netem draws for every packet ``x = (1 - c) * v + c * x'`` with a fresh uniform ``v`` and the last ``x'``, and acts
where ``x`` is below the share that it was told. But such an ``x`` is not uniform: it keeps to the middle, so that
told 10 % with a correlation of 25 % it would lose 1.7 %, and told 1 % next to nothing. What must be told is the
value below which ``x`` lies as often as was asked: a quantile of its stationary distribution.

The correlation of delays is another matter: netem takes an entry of its table by the lowest bits of ``x``, which
are as good as independent, so that it changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from testbed.scenario.impairments import HIGHEST_CORRELATION, Impairments

if TYPE_CHECKING:
    import numpy as np

    Values = np.ndarray[Any, np.dtype[np.float64]]

_LEAST, _BEND, _POINTS, _ROUNDS, _SETTLED = 1e-12, 0.05, 3000, 5000, 1e-7


def told(impairments: Impairments) -> Impairments:
    """Impairments with the shares to tell netem in the place of those that are asked for."""
    loss = impairments.loss
    if isinstance(loss, (int, float)):
        loss = threshold(loss, impairments.loss_correlation)
    return replace(
        impairments,
        loss=loss,
        reorder=threshold(impairments.reorder, impairments.reorder_correlation),
        duplicate=threshold(impairments.duplicate, impairments.duplicate_correlation),
        corrupt=threshold(impairments.corrupt, impairments.corrupt_correlation),
    )


def threshold(share: float, correlation: float) -> float:
    """The value below which netem's correlated random number lies with probability ``share``.

    Scenarios are refused a correlation above ``HIGHEST_CORRELATION``; with one the share is told as it is.
    """
    if not 0 < share < 1 or not 0 < correlation <= HIGHEST_CORRELATION:
        return share
    import numpy as np

    values, below = _distribution(correlation)
    return float(np.interp(share, below, values))


@cache
def widening(share: float, correlation: float) -> float:
    """By how much the correlation widens the variance of a share that is counted over many packets: 1 is none.

    ``1 + 2 * sum of the correlations`` of what happens to a packet with what happens to every later one. How often
    it happens to a packet so many after one with ``x`` is the mean of the same one nearer, over the next ``x``.
    """
    if not 0 < share < 1 or not 0 < correlation <= HIGHEST_CORRELATION:
        return 1.0
    import numpy as np

    share, kept = (
        min(share, 1 - share),
        1 - correlation,
    )  # x is as often above 1 - limit as below limit
    limit = threshold(share, correlation)
    values, below = _distribution(correlation)
    points = np.union1d(np.append(values, 0.0), [limit])
    weights = np.diff(np.interp(points, values, below))[points[1:] <= limit]
    low, high = correlation * points, correlation * points + kept
    ahead = (np.minimum(high, limit) - np.minimum(low, limit)) / kept
    wider = 1.0
    while np.max(np.abs(ahead - share)) > _SETTLED:
        middle = (ahead[1:] + ahead[:-1]) / 2
        together = float(weights @ middle[: len(weights)]) / share - share
        wider += 2 * together / (1 - share)
        area = np.concatenate([[0.0], np.cumsum(middle * np.diff(points))])
        ahead = (np.interp(high, points, area) - np.interp(low, points, area)) / kept
        if np.ptp(ahead) < _SETTLED:
            break
    return max(1.0, wider)


@cache
def _distribution(correlation: float) -> tuple[Values, Values]:
    """Values, and how often ``x`` is below each.

    ``F`` is what it becomes by one more draw: ``F(x) = c/(1-c) * (G(x/c) - G((x-(1-c))/c))`` with ``G`` its
    integral; so it is drawn until it stays. Points are dense near 0, where rare events are.
    """
    import numpy as np

    near_nothing = np.geomspace(_LEAST, _BEND, _POINTS // 2, endpoint=False)
    values = np.concatenate([near_nothing, np.linspace(_BEND, 1, _POINTS // 2)])
    below, ratio = values.copy(), correlation / (1 - correlation)
    for _ in range(_ROUNDS):
        upper = _integral(values, below, values / correlation)
        lower = _integral(values, below, (values - (1 - correlation)) / correlation)
        drawn = np.clip(ratio * (upper - lower), 0, 1)
        moved = float(np.max(np.abs(drawn - below) / (drawn + _LEAST)))
        below = drawn
        if moved < _SETTLED:
            break
    return values, below


def _integral(values: Values, below: Values, to: Values) -> Values:
    """Of a distribution function from 0; beyond 1 it is 1."""
    import numpy as np

    steps = (below[1:] + below[:-1]) / 2 * np.diff(values)
    area = np.concatenate([[0.0], np.cumsum(steps)]) + below[0] * values[0] / 2
    logarithm = np.log(np.maximum(area, 1e-300))
    inside = np.exp(np.interp(np.log(np.clip(to, _LEAST, 1)), np.log(values), logarithm))
    return np.where(to <= 0, 0.0, np.where(to > 1, area[-1] + to - 1, inside))
