"""How flows share links: weighted max-min fairness by progressive filling. Pure.

A flow gets what its tightest link gives it: links divide what they have in proportion to the weights (the
congestion windows) of the flows that are not held up elsewhere, as a first-in first-out queue does. A flow
may have a limit of its own besides. (Bertsekas and Gallager, *Data Networks*, 6.5.2.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_SLACK = 1 + 1e-12


class Shares(NamedTuple):
    """``rate``: bit/s of every flow. ``tightest``: its tightest link; -1: the flow's own limit holds it."""

    rate: Floats
    tightest: Indices


def share(capacity: Floats, paths: Indices, weight: Floats, limit: Floats) -> Shares:
    """Divide ``capacity`` (links,) in bit/s among flows.

    ``paths`` (flows, hops): indices of links; shorter ones are filled up with that of a link that never is
    a bottleneck (infinite capacity). ``weight``, ``limit`` (flows,): limits in bit/s, may be infinite.
    """
    if paths.size < len(capacity):  # most links have nothing to carry
        used, numbers = np.unique(paths, return_inverse=True)
        found = _fill(capacity[used], numbers.reshape(paths.shape), weight, limit)
        named = np.where(found.tightest < 0, -1, used[found.tightest])
        return Shares(found.rate, named)
    return _fill(capacity, paths, weight, limit)


def evened(weight: Floats, windowed: NDArray[np.bool_]) -> Floats:
    """Weights (flows,) with which flows that have no window get as much as those that have one, on average."""
    mean = weight[windowed].mean() if windowed.any() else 1.0
    even: Floats = np.where(windowed, weight, mean)
    return even


def _fill(capacity: Floats, paths: Indices, weight: Floats, limit: Floats) -> Shares:
    flows, hops = paths.shape
    rate, tightest = np.zeros(flows), np.full(flows, -1, np.int64)
    spare = capacity.astype(np.float64)
    open_ = np.arange(flows)
    while len(open_):
        path, w = paths[open_], weight[open_]
        load = np.bincount(path.ravel(), np.repeat(w, hops), len(spare))
        with np.errstate(divide="ignore", invalid="ignore"):
            level = np.where(load > 0, spare / load, np.inf)
        offered = level[path]
        place = offered.argmin(1)
        least = offered[np.arange(len(open_)), place]
        lowest = least.min()
        own = limit[open_]
        held = own <= w * lowest  # these get all they want, whatever becomes of the others
        if held.any():
            rate[open_[held]] = own[held]
            got = own[held]
        else:
            held = least <= lowest * _SLACK
            got = w[held] * least[held]
            rate[open_[held]] = got
            tightest[open_[held]] = path[held, place[held]]
        spare -= np.bincount(path[held].ravel(), np.repeat(got, hops), len(spare))
        np.maximum(spare, 0.0, out=spare)
        open_ = open_[~held]
    return Shares(rate, tightest)
