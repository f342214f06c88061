"""When the links paused, told by how many bits had been carried by then. Pure.

A synchronous job sends (nearly) the same bytes in every step, however long the links take for them. So on an axis of
bits its pauses come at equal distances, where on an axis of time they would follow the links' rates.
"""

from __future__ import annotations

import numpy as np

from testbed.record.traffic import Array, Traffic

PAUSED = 0.15
"""A link that was used less than this, of what it was used at most, stood still."""
_UNLIKE = 0.1
"""Neighbours whose use differs by more than this are not alike."""
_HARDLY = 0.002
"""Of all bits: what comes before so many, and after so many less than all, is no part of the job's steps."""

_AFTER_S = 0.5
"""So much of what follows the last bits is the last step's pause."""


class Pauses:
    """Points (bits, paused seconds, time) in between which bits flow evenly; all of shape (n,), ascending."""

    def __init__(self, traffic: Traffic, shares: Array) -> None:
        """Of ``traffic`` with at least one sample that carried something. ``shares``: of each time between two of its
        times, in which what is looked at was used."""
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
        """Of each sample, of what the links were used at most."""
        self.ends_s: Array = times[1:]
        """Of each sample."""
        points = _points(times, bits, self.use)
        self.bits, self.paused_s, self.times_s = points
        self.length_bits = float(bits[-1] - bits[0])
        self.share = float(self.paused_s[-1] / max(1e-9, times[-1] - times[0]))
        """Of the time, how much was paused."""

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
        """From and to how many bits: all of them, or in their middle what about ``most`` samples carry."""
        left = 0.5 * self.length_bits * max(0.0, 1 - most / len(self.use))
        return float(self.bits[0] + left), float(self.bits[-1] - left)

    def density(self, count: int, from_bits: float, to_bits: float) -> Array:
        """Seconds paused in each of ``count`` equal parts of the bits between the two, shape (count,)."""
        edges = np.linspace(from_bits, to_bits, count + 1)
        return self.between(edges[:-1], edges[1:])


def _points(times: Array, bits: Array, use: Array) -> tuple[Array, Array, Array]:
    """Within a sample that was used in part, bits lie beside those of the neighbour that was used more.

    So a burst that ends in it ends where its bits are done; where both neighbours are alike they are spread evenly.
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
    )  # fmt: skip
    points = rows.transpose(2, 0, 1).reshape(-1, 3)
    points = np.concatenate([points, [[bits[-1], paused[-1], times[-1]]]])
    # strictly ascending, or a pause would be at no one place: by no more than a bit in a million
    slack = (bits[-1] - bits[0]) * 1e-6 * np.arange(len(points)) / len(points)
    return points[:, 0] + slack, points[:, 1], points[:, 2]
