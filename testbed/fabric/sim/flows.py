"""Everything that is under way on the modelled links, and who gets how much of them when.

A flow is what one connection has to send at a time, or one node to a group. Between two events (a
flow begins or ends, a link changes, a round trip is over) all rates are constant, so nothing is
computed in between. What happens at one instant is taken in together: a thousand flows that begin
at once are shared out once.
"""

from __future__ import annotations

from math import ceil, inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.link_state import (
    HOPS,
    PACKET_BITS,
    Floats,
    Indices,
    LinkArrays,
    Route,
    evened,
    share,
)
from testbed.fabric.sim.tcp_model import (
    LinkLosses,
    SimFlow,
    WindowMemory,
    Windows,
    allowed_bits,
    hop_arrays,
    note_queues,
    weights,
)
from testbed.scenario.link_state import LinkDirection, LinkState

ROUND_TRIP_S = 100e-6
"""Time of a round trip where links delay nothing: that of two hosts' network stacks."""
_PUSHING = 1e3
"""How much more than others a flow gets that does not care for congestion."""
_EXACT_ENDS, _TOGETHER_S = 512, 0.4e-6
"""In networks of more link directions, what happens this close together is taken as one."""
_EMPTY_BITS = 0.5
"""A flow with less than this left has been sent."""


class Flows:
    """The flows on ``links``. ``seed``: for chance. ``bundle``: packets handed down at a time."""

    def __init__(
        self, clock: VirtualClock, links: LinkArrays, seed: int = 0, bundle: int = 1
    ) -> None:
        self.links, self._clock = links, clock
        self._bundle = bundle
        self.losses = LinkLosses(links, seed)
        self._random = np.random.default_rng(seed)
        self._flows: list[SimFlow] = []
        self._new: list[SimFlow] = []
        self._multicasts = False
        """True once anything was multicast."""
        self._datagrams = False
        """True once anything was sent at a rate of its own."""
        self._marks = False
        """True once any flow had a mark."""
        self._make_rows(64, HOPS)
        self._then_s, self._due, self._planned = 0.0, False, 0

    def begin(self, flow: SimFlow) -> None:
        """``flow`` has something to send from now on."""
        flow.start_s = self._clock.now
        if flow.memory is not None:
            flow.memory.restart(flow.start_s)
        if flow.legs:
            self._multicasts = True
            self._widen(len(flow.route.forward))
        self._datagrams |= isfinite(flow.limit_bits)
        self._marks |= flow.marked is not None
        self._new.append(flow)
        self._touch()

    def end(self, flow: SimFlow) -> float:
        """``flow`` stops here; returns the bits that it has sent."""
        self.advance()
        if flow in self._new:
            self._new.remove(flow)
            return 0.0
        row = self._flows.index(flow)
        sent = flow.bits - float(self._left[row])
        if isfinite(flow.limit_bits):
            self.losses.of_datagrams(flow, sent)
        self._left[row] = 0.0
        self._touch()
        return sent

    def change(self, end: LinkDirection, shape: LinkState) -> None:
        """A link direction is now as ``shape`` says."""
        self.advance()
        number = self.links.number[end]
        was = bool(self.links.dropping[number])
        if self._datagrams:
            self._lose_datagrams(number)
        self.links.set(end, shape)
        if was and not self.links.dropping[number]:
            self.losses.resume(self._crossing(number), self._clock.now)
        elif not was and self.links.dropping[number]:
            self.losses.stall(number, self._clock.now)
        self._touch()

    def serves(self, number: int) -> bool:
        """Return whether something of a message is coming over that link direction just now."""
        return self._moving((self._forward[: self.count] == number).any(1))

    def carries(self, path: Route) -> bool:
        """Return whether something of a message is coming along ``path`` just now."""
        return self._moving(np.array([flow.route is path for flow in self._flows], np.bool_))

    @property
    def count(self) -> int:
        """Flows under way."""
        return len(self._flows)

    def _moving(self, chosen: NDArray[np.bool_]) -> bool:
        rows = (chosen & (self._rate[: self.count] > 0)).nonzero()[0]
        flows = (self._flows[row] for row in rows.tolist())
        return any(not flow.traffic and self.losses.passes(flow) for flow in flows)

    def _crossing(self, number: int) -> list[SimFlow]:
        rows = np.flatnonzero((self._forward[: self.count] == number).any(1))
        return [self._flows[row] for row in rows]

    def _lose_datagrams(self, number: int) -> None:
        """Draw what was lost until now of datagrams over a link direction, before it changes."""
        n = self.count
        crossing = (self._forward[:n] == number).any(1) & np.isfinite(self._fixed[:n])
        for row in np.flatnonzero(crossing).tolist():
            flow = self._flows[row]
            self.losses.of_datagrams(flow, flow.bits - float(self._left[row]))

    def _touch(self) -> None:
        """Share out anew once everything that happens at this instant is known."""
        if not self._due:
            self._due = True
            now = self._clock.now
            grid = _TOGETHER_S * len(self.links.ends)
            exact = len(self.links.ends) <= _EXACT_ENDS
            self._clock.at(now if exact else ceil(now / grid) * grid, self._settle)

    def _settle(self) -> None:
        self._due = False
        self.advance()
        ended = self._take_out()
        self._take_in()
        if self._flows:
            self._round_trips()
            self._share()
            if self._overflow():
                self._share()
            if self._marks:
                self._call_marked()
        else:
            self.links.queue(np.zeros(len(self.links.queued_bits)))
        self._plan()
        for flow in ended:
            flow.done(flow)

    def advance(self) -> None:
        """Let what is under way go on until now; ``links.carried_bits`` says how far that is."""
        n, passed_s = self.count, self._clock.now - self._then_s
        if passed_s <= 0:
            return
        self._then_s = self._clock.now
        self.links.served_bits += passed_s * self.links.finite
        if not n:
            return
        # what ends between two points of the grid has sent no more than it had
        sent = np.minimum(self._rate[:n] * passed_s, self._left[:n])
        self._left[:n] -= sent
        forward, links = self._forward[:n], self.links
        per_hop = sent.repeat(forward.shape[1])
        carried = np.bincount(forward.ravel(), per_hop, len(links.carried_bits))
        links.carried_bits += carried
        links.delivered_bits += carried * links.charge

    def _take_out(self) -> list[SimFlow]:
        """Those that have sent everything."""
        n = self.count
        empty = self._left[:n] <= _EMPTY_BITS
        rows = empty.nonzero()[0]
        if not len(rows):
            return []
        trips = self._round_trip_s(rows)
        ended = [self._flows[row] for row in rows.tolist()]
        for flow, row, trip_s in zip(ended, rows.tolist(), trips.tolist(), strict=True):
            flow.tightest = int(self._tightest[row])
            flow.late_s = trip_s * self.losses.at_end(flow, float(self._windows.window[row]))
        self._windows.close(rows, [flow.memory for flow in ended], self._clock.now)
        kept = np.flatnonzero(~empty)
        for column in self._columns:
            column[: len(kept)] = column[kept]
        self._flows = [self._flows[row] for row in kept.tolist()]
        return ended

    def _call_marked(self) -> None:
        """Tell those of which no more is left than they have marked."""
        n = self.count
        reached = (self._mark[:n] > 0) & (self._left[:n] <= self._mark[:n] + _EMPTY_BITS)
        for row in reached.nonzero()[0].tolist():
            marked, mark_bits = self._flows[row].marked, float(self._mark[row])
            left = float(self._left[row]) - _EMPTY_BITS
            while marked is not None and mark_bits > 0 and left <= mark_bits:
                mark_bits = marked()
            self._mark[row] = mark_bits

    def _take_in(self) -> None:
        """Those that have begun at this instant."""
        if not self._new:
            return
        n, new, links = self.count, self._new, self.links
        if n + len(new) > len(self._left):
            self._make_rows(2 * (n + len(new)), self._forward.shape[1])
        rows = slice(n, n + len(new))
        forward, backward = hop_arrays(new, self._forward.shape[1], links.null_link)
        self._forward[rows], self._backward[rows] = forward, backward
        self._left[rows] = [flow.bits for flow in new]
        self._fixed[rows] = [flow.limit_bits for flow in new]
        self._mark[rows] = [flow.mark_bits for flow in new]
        self._rate[rows], self._tightest[rows], self._last[rows] = 0.0, -1, True
        least_s = ROUND_TRIP_S + links.delay_s[forward].sum(1) + links.delay_s[backward].sum(1)
        memories = [flow.memory or WindowMemory() for flow in new]
        self._windows.open(rows, memories, least_s)
        self._small[rows] = allowed_bits(self._windows.pace(rows), self._bundle)
        note_queues(links, new, forward)
        self._flows += new
        self._new = []

    def _round_trips(self) -> None:
        over = self._windows.round_s[: self.count] <= self._clock.now + 1e-12
        rows = whole = over.nonzero()[0]
        if not len(rows):
            return
        took = self._round_trip_s(rows)
        out = self._rate[rows] * took / PACKET_BITS
        if self.links.impaired:
            lost = self.losses.in_round(rows, self._flows, out)
            self._left[rows] += lost * PACKET_BITS
            self._windows.cut(rows[lost > 0], self._clock.now)
            whole, took, out = rows[lost == 0], took[lost == 0], out[lost == 0]
        burst_s = out * PACKET_BITS / self.links.narrowest_bits(self._forward[whole])
        # from the first to the last answer: all of it, or, where no link is full, a burst
        train_s = np.where(self._tightest[whole] >= 0, took, burst_s)
        luck = self._random.random(len(whole))
        self._windows.grow(whole, self._clock.now, took, out, train_s, luck)
        self._windows.round_s[rows] = np.inf
        self._small[rows] = allowed_bits(self._windows.pace(rows), self._bundle)

    def _share(self) -> None:
        n, windows = self.count, self._windows
        window_bits = windows.window[:n] * PACKET_BITS
        given, last = self._fixed[:n], self._last[:n]
        windowed, fresh = np.isinf(given), np.isinf(windows.round_s[:n])
        all_windowed = np.count_nonzero(windowed) == n
        if not all_windowed:
            fresh &= windowed
        np.copyto(last, self._left[:n] <= window_bits, where=fresh)
        limit = window_bits / windows.least_s[:n]
        limit[last] = np.inf
        first = self._forward[:n, 0]
        weight = weights(first, self.links.own[first], window_bits, self._small[:n])
        if not all_windowed:
            fixed = np.isfinite(given)
            np.copyto(limit, given, where=fixed)
            if self._multicasts:
                weight = evened(weight, windowed)
            weight[fixed] = _PUSHING * window_bits.max()
        self.losses.hold(limit, self._flows, self._clock.now)
        shares = share(self.links.capacity, self._forward[:n], weight, limit)
        self._rate[:n], self._tightest[:n] = shares
        self._queue(window_bits, windowed)
        rows = fresh.nonzero()[0]
        if len(rows):
            windows.round_s[rows] = self._clock.now + self._round_trip_s(rows)

    def _queue(self, window_bits: Floats, windowed: NDArray[np.bool_]) -> None:
        """Queue at the tightest link what is in the windows and not on its way."""
        n, links, tightest = self.count, self.links, self._tightest[: self.count]
        waiting = np.maximum(0.0, window_bits - self._rate[:n] * self._windows.least_s[:n])
        waiting = np.minimum(waiting, self._left[:n]) * windowed
        # where no link is tightest, the last one is looked at, which nobody owns
        np.minimum(waiting, self._small[:n], out=waiting, where=links.own[tightest])
        limited = tightest >= 0
        links.queue(np.bincount(tightest[limited], waiting[limited], len(links.queued_bits)))

    def _overflow(self) -> bool:
        """Cut the windows of those who lose packets at a queue that is full. True: some were."""
        links, hit_any = self.links, False
        for number in (links.queued_bits > links.queue_bits).nonzero()[0]:
            losing = (self._tightest[: self.count] == number) & np.isinf(self._fixed[: self.count])
            rows = np.flatnonzero(losing)
            lost = links.queued_bits[number] - links.queue_bits[number]
            luck = self._random.random(len(rows))
            trips = self._round_trip_s(rows)
            hit = self._windows.hit(rows, lost / PACKET_BITS, self._clock.now, trips, luck)
            if len(hit):
                hit_any = True
                links.drops[number] += max(1, round(lost / PACKET_BITS))
                self._windows.cut(hit, self._clock.now)
                self._windows.round_s[hit] = np.inf
        return hit_any

    def _round_trip_s(self, rows: Indices) -> Floats:
        waits = self.links.wait_s(self._forward[rows]) + self.links.wait_s(self._backward[rows])
        total: Floats = self._windows.least_s[rows] + waits
        return total

    def _plan(self) -> None:
        """Come back when the first flow has been sent, as far as it is marked or all of it, or the
        first round trip is over."""
        n, number = self.count, self._planned + 1
        self._planned = number
        if not n:
            return
        rate, round_s = self._rate[:n], self._windows.round_s[:n]
        moving, never = rate > 0, np.full(n, inf)
        rounds = float(np.where(moving, round_s, never).min())
        left = self._left[:n] - self._mark[:n]
        ends = float(np.divide(left, rate, out=never, where=moving).min())
        if (next_s := min(self._clock.now + ends, rounds, self.losses.next_s)) < inf:
            self._clock.at(next_s, self._come_back, number)

    def _come_back(self, number: int) -> None:
        """Share out anew at the time planned last; ignore times planned before it."""
        if number == self._planned:
            self._touch()

    def _make_rows(self, rows: int, hops: int) -> None:
        """Make room for ``rows`` flows over ``hops`` links each, with those that there are."""
        old = self._columns if self._flows else ()
        self._forward: Indices = np.zeros((rows, hops), np.int64)
        self._backward: Indices = np.zeros((rows, HOPS), np.int64)
        self._left: Floats = np.zeros(rows)
        self._rate: Floats = np.zeros(rows)
        self._fixed: Floats = np.zeros(rows)
        self._mark: Floats = np.zeros(rows)
        """Bits that are left when its ``marked`` is to be called; 0: never."""
        self._tightest: Indices = np.zeros(rows, np.int64)
        self._small: Floats = np.zeros(rows)
        """Bits that it may have in the queue of its own host."""
        self._last: NDArray[np.bool_] = np.zeros(rows, np.bool_)
        """True where all that is left was sent at once when the present round trip began."""
        self._windows = Windows(rows)
        for new, before in zip(self._columns, old, strict=False):
            new[: len(before)] = before

    def _widen(self, hops: int) -> None:
        """Make room for ways of so many links: what is multicast has one for every member."""
        if (more := hops - self._forward.shape[1]) > 0:
            free = self.links.null_link
            self._forward = np.pad(self._forward, ((0, 0), (0, more)), constant_values=free)

    @property
    def _columns(self) -> tuple[NDArray[Any], ...]:
        return (
            self._forward,
            self._backward,
            self._left,
            self._rate,
            self._fixed,
            self._mark,
            self._tightest,
            self._small,
            self._last,
            *self._windows.columns,
        )
