"""TCP's congestion windows, of many flows at once: slow start, HyStart, CUBIC, restart after idleness.

A window changes once a round trip. What it is after loss and in between follows RFC 9438 and Linux's
tcp_cubic.c: factor 0.7 at a loss, C = 0.4, growth at least Reno's, slow start left as soon as round trips get
longer. Windows are in packets of full size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testbed.fabric.sim.shares import Floats, Indices

INITIAL = 10.0
"""RFC 6928."""
_LEAST, _MOST = 2.0, 11_000.0
"""The latter is what ``tcp_rmem`` lets a connection have under way: 16 MB."""
_BETA, _C = 0.7, 0.4
_RENO = 3 * (1 - _BETA) / (1 + _BETA)
"""Packets a round trip by which CUBIC grows at least."""
_HYSTART_WINDOW = 16.0
"""For the delay as many must be under way: it takes eight answers in a round trip to tell that it has got longer."""
_TRAIN_MORE_S, _TRAIN_APART_S = 1e-3, 2e-3
"""Answers that follow one another so closely, for longer than half of the least round trip and this, end it too.
They come as the queue mixes them: half of the mean apart to one and a half."""
_PER_ANSWER, _SMOOTHING = 2, 7 / 8
"""Packets that are acknowledged together; what an answer leaves of the smoothed round-trip time before."""
_PACE_AT_FIRST, _PACE = 2.0, 1.2
"""Linux's pacing ratios, in slow start below half the threshold and from there on."""
_HYSTART_LEAST_S, _HYSTART_MOST_S = 0.004, 0.016
_USED = 0.9
"""A window of which less than that is under way is not what holds its flow up."""
TIMEOUT_S = 0.2
"""Linux's least retransmission time-out, to which a round trip is added."""


@dataclass(slots=True)
class Memory:
    """What a connection keeps from one message to the next."""

    window: float = INITIAL
    threshold: float = np.inf
    origin: float = 0.0
    """The window at the last loss: where CUBIC's curve has its plateau; 0: there was none."""
    epoch_s: float = 0.0
    """When it was cut last, or slow start was left."""
    sent_s: float = 0.0
    """When it last had something to send."""
    round_trip_s: float = 0.0

    def restart(self, now_s: float) -> None:
        """A connection that was idle for long begins more carefully (RFC 2861, as Linux does it)."""
        timeout_s = TIMEOUT_S + self.round_trip_s
        idle_s = now_s - self.sent_s
        if idle_s <= timeout_s:
            return
        self.threshold = max(self.threshold, 0.75 * self.window)
        while (idle_s := idle_s - timeout_s) > 0 and self.window > INITIAL:
            self.window = max(INITIAL, self.window / 2)


class Windows:
    """The windows of all flows that have something to send, by row; rows are moved by their owner."""

    def __init__(self, rows: int) -> None:
        self.window: Floats = np.zeros(rows)
        self.threshold: Floats = np.zeros(rows)
        self.origin: Floats = np.zeros(rows)
        self.epoch_s: Floats = np.zeros(rows)
        self.least_s: Floats = np.zeros(rows)
        """The least round-trip time that the way can have."""
        self.round_s: Floats = np.zeros(rows)
        """When the present round trip ends."""
        self.cut_s: Floats = np.zeros(rows)
        """When packets were lost last."""
        self.smooth_s: Floats = np.zeros(rows)
        """The smoothed round-trip time; 0: none was measured yet."""

    @property
    def columns(self) -> tuple[Floats, ...]:
        """All arrays, for whoever moves rows."""
        return (
            self.window, self.threshold, self.origin, self.epoch_s, self.least_s, self.round_s,
            self.cut_s, self.smooth_s,
        )  # fmt: skip

    def open(self, rows: slice, memories: Sequence[Memory], least_s: Floats) -> None:
        """Connections begin to send; when their first round trip ends is for ``round_s`` to say."""
        self.window[rows] = [memory.window for memory in memories]
        self.threshold[rows] = [memory.threshold for memory in memories]
        self.origin[rows] = [memory.origin for memory in memories]
        self.epoch_s[rows] = [memory.epoch_s for memory in memories]
        self.smooth_s[rows] = [memory.round_trip_s for memory in memories]
        self.least_s[rows], self.round_s[rows], self.cut_s[rows] = least_s, np.inf, -np.inf

    def close(self, rows: Indices, memories: Sequence[Memory | None], now_s: float) -> None:
        """They have nothing to send any more."""
        kept = (self.window, self.threshold, self.origin, self.epoch_s, self.smooth_s)
        columns = (column[rows].tolist() for column in kept)
        for memory, *values in zip(memories, *columns, strict=True):
            if memory is not None:
                (
                    memory.window, memory.threshold, memory.origin, memory.epoch_s,
                    memory.round_trip_s,
                ) = values  # fmt: skip
                memory.sent_s = now_s

    def grow(
        self,
        rows: Indices,
        now_s: float,
        round_trip_s: Floats,
        out: Floats,
        train_s: Floats,
        luck: Floats,
    ) -> None:
        """A round trip of ``rows`` has ended without loss; it took ``round_trip_s`` (rows,).

        ``out`` (rows,): packets that were under way. A window that is not used up does not grow.
        ``train_s`` (rows,): from the first of their answers to the last; ``luck`` (rows,): random, from 0 to 1.
        """
        window, threshold = self.window[rows], self.threshold[rows]
        slow = window < threshold
        least = self.least_s[rows]
        longer = round_trip_s - least > np.clip(least / 8, _HYSTART_LEAST_S, _HYSTART_MOST_S)
        longer &= out >= _HYSTART_WINDOW
        apart_s = train_s * _PER_ANSWER / np.maximum(out, 1.0)
        close = apart_s * (0.5 + luck) <= _TRAIN_APART_S
        train = (train_s > (least + _TRAIN_MORE_S) / 2) & close
        leaving = slow & (longer | train) & (window >= _HYSTART_WINDOW)
        most = np.minimum((2 - luck) * out, window)
        doubled = np.minimum(2 * most, np.maximum(threshold, window))
        steady = np.where(out < _USED * window, window, self._cubic(rows, now_s, round_trip_s))
        grown = np.where(slow, np.where(leaving, window, np.maximum(doubled, window)), steady)
        self.threshold[rows] = np.where(leaving, window, threshold)
        self.epoch_s[rows] = np.where(leaving, now_s, self.epoch_s[rows])
        self.window[rows] = np.clip(grown, _LEAST, _MOST)
        first, news = self.smooth_s[rows] == 0, 1 - _SMOOTHING ** (out / _PER_ANSWER)
        old_s = np.where(first, round_trip_s, self.smooth_s[rows])
        self.smooth_s[rows] = old_s + news * (round_trip_s - old_s)

    def pace(self, rows: Indices | slice) -> Floats:
        """Packets a second, on average over a moment, that ``rows`` send at most."""
        window = self.window[rows]
        factor = np.where(window < self.threshold[rows] / 2, _PACE_AT_FIRST, _PACE)
        return factor * window / np.maximum(self.smooth_s[rows], self.least_s[rows])

    def hit(
        self, rows: Indices, lost: float, now_s: float, round_trip_s: Floats, luck: Floats
    ) -> Indices:
        """Who of ``rows`` is among those that lose ``lost`` packets, and has not been so for a round trip."""
        windows = self.window[rows]
        missed = (1 - min(1.0, lost / max(windows.sum(), 1.0))) ** windows
        again = now_s - self.cut_s[rows] > round_trip_s
        hit: Indices = rows[(luck >= missed) & again]
        return hit

    def cut(self, rows: Indices, now_s: float) -> None:
        """``rows`` have lost packets. (Fast convergence: who has not come back to where it was gives way.)"""
        window, origin = self.window[rows], self.origin[rows]
        self.origin[rows] = np.where(window < origin, window * (1 + _BETA) / 2, window)
        self.window[rows] = self.threshold[rows] = np.maximum(_LEAST, _BETA * window)
        self.epoch_s[rows] = self.cut_s[rows] = now_s

    def _cubic(self, rows: Indices, now_s: float, round_trip_s: Floats) -> Floats:
        window, origin = self.window[rows], np.maximum(self.origin[rows], 1.0)
        passed = now_s - self.epoch_s[rows] + round_trip_s
        start = np.where(
            self.origin[rows] > self.threshold[rows], _BETA * origin, self.threshold[rows]
        )
        start = np.where(np.isfinite(start), start, window)
        top = np.maximum(origin, start)
        plateau_s = np.cbrt((top - start) / _C)
        curve = _C * (passed - plateau_s) ** 3 + top
        reno = start + _RENO * passed / np.maximum(round_trip_s, 1e-9)
        return np.minimum(np.maximum(np.maximum(curve, reno), window), 1.5 * window)
