"""A sender's side: whose turn it is, how much may be under way, what is sent again, who is asked,
who is lost.

As in LEDBAT (RFC 6817), what is held constant is the delay that packets meet in queues, measured at
the receivers and one way, so that what happens on the way back does not matter. Loss counts where
it comes with delay, or is heavy: loss on an idle link is the link's own.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from testbed.transport.multicast.packet import Flag, ReceiverReport, clock_us, since
from testbed.transport.multicast.receiver import AHEAD
from testbed.transport.multicast.udp import SLOTS, Address, Outgoing, Transmitter

TARGET_US = 15_000
LEAST, MOST = 2.0, 16_384.0
_FIRST = 4.0
_HEAVY_LOSS = 0.1
_CUT = 0.7
_STEP_SHARE = 1 / 8
_BACK_SHARE = 1 / 8
_REST_S = 2.0
_LEAST_WAIT_S, _MOST_WAIT_S = 0.03, 0.5


@dataclass
class SendWindow:
    """Window of one sender, over all its groups; kept from message to message."""

    packets: float = _FIRST
    starting: bool = True
    """Doubling every round trip, until the first delay."""
    _cut_s: float = float("-inf")
    _above_least_s: float | None = None

    def progressed(self, packets: int, queued_us: int, now_s: float, limited: bool) -> None:
        """The slowest member has that many more; ``limited``: the window, not a want of data, has
        held us up."""
        if self.packets > LEAST or self._above_least_s is None:
            self._above_least_s = now_s
        change = self._change(packets, queued_us)
        if limited or change < 0:
            self._set(self.packets + change)

    def lost(self, share: float, queued_us: int, now_s: float, round_trip_s: float) -> None:
        """Note that ``share`` of the packets sent lately did not come to some member; one cut every
        round trip."""
        blamed = queued_us > TARGET_US / 2 or share > _HEAVY_LOSS
        if blamed and now_s - self._cut_s > round_trip_s:
            self.starting = False
            self._cut_s = now_s
            self._set(self.packets * _CUT)

    def resting(self, now_s: float) -> bool:
        """Return whether it has been at its least for so long that the delay measured cannot be its
        own."""
        above_s = self._above_least_s
        return self.packets <= LEAST and above_s is not None and now_s - above_s > _REST_S

    def _change(self, packets: int, queued_us: int) -> float:
        if self.starting and queued_us < TARGET_US / 4:
            return float(packets)
        self.starting = False
        off = max(-3.0, 1.0 - queued_us / TARGET_US)
        a_trip = 1.0 + _STEP_SHARE * self.packets if off > 0 else _BACK_SHARE * self.packets
        return a_trip * off * min(1.0, packets / self.packets)

    def _set(self, packets: float) -> None:
        self.packets = min(MOST, max(LEAST, packets))


@dataclass
class RoundTripEstimate:
    """How long an answer takes (RFC 6298's way of estimating it), in seconds."""

    mean_s: float = _LEAST_WAIT_S
    spread_s: float = 0.0

    def measured(self, took_s: float) -> None:
        """One answer took so long."""
        self.spread_s += (abs(took_s - self.mean_s) - self.spread_s) / 4
        self.mean_s += (took_s - self.mean_s) / 8

    def patience_s(self, asks: int) -> float:
        """How long to wait for an answer after having asked in vain so often."""
        wait_s = max(_LEAST_WAIT_S, self.mean_s + 4 * self.spread_s)
        return min(_MOST_WAIT_S, wait_s * (1 << min(asks, 10)))


_ASKS_PER_WINDOW = 3
_FEW = 2
"""So many members are asked, and fewer are sent to again, one by one; more, as a group."""


class Sending:
    """Everything on its way out. Not for several threads. ``lost`` is told of a member and why."""

    def __init__(
        self,
        transmitter: Transmitter,
        addresses: Mapping[int, Address],
        silence_s: float,
        lost: Callable[[int, str], None],
    ) -> None:
        self._transmitter, self._addresses = transmitter, addresses
        self._silence_s, self._lost = silence_s, lost
        self.groups: dict[int, Address] = {}
        self.blocked = False
        """True if the kernel would take no more."""
        self.window, self._trip = SendWindow(), RoundTripEstimate()
        self._turns: deque[Outgoing] = deque()
        self._active: dict[tuple[int, int], Outgoing] = {}
        self._heard_s: dict[int, float] = {}
        self._unasked = 0
        self._limited = False

    @property
    def idle(self) -> bool:
        """Return whether everything has been confirmed."""
        return not self._active

    def begin(self, message: Outgoing) -> None:
        """Take a message on."""
        self._turns.append(message)
        self._active[message.group, message.number] = message
        self._finish(message)

    def on_report(
        self,
        member: int,
        about: tuple[int, int],
        reached: int,
        done: bool,
        report: ReceiverReport,
        answered_us: int,
    ) -> None:
        """A member has reported. Raises ValueError where it cannot have seen what it says."""
        now_ns = time.monotonic_ns()
        now_s = self._heard_s[member] = now_ns / 1e9
        message = self._find(*about)
        if message is None or member not in message.members:
            return
        before = message.reached()
        lost = message.on_report(member, reached, done, report, answered_us, now_s)
        self._trip.measured(max(0.0, (since(answered_us, clock_us(now_ns)) - report.held_us) / 1e6))
        passed = message.reached() - before
        if passed or lost:
            self._wait(message, now_s, 0)
        if lost:
            share = lost / self.window.packets
            self.window.lost(share, report.queued_us, now_s, self._trip.mean_s)
        if passed:
            self.window.progressed(passed, report.queued_us, now_s, self._limited)
        self._finish(message)

    def drop(self, member: int) -> None:
        """A member is gone: nothing waits for it any more."""
        for message in list(self._active.values()):
            message.drop(member)
            self._finish(message)

    def abandon(self) -> None:
        """Nothing more will be sent: whoever waits for it need not."""
        for message in self._active.values():
            message.handed_over.set()

    def transmit(self, now_s: float) -> None:
        """Send what is due and what the window lets through, as far as the kernel takes it."""
        self.blocked = False
        for message in list(self._active.values()):
            if message.repairs and not self._repair(message, now_s):
                self.blocked = True
                return
        self._limited = False
        self._transmitter.make_room(int(self.window.packets))
        while self._turns and not self.blocked:
            allowed = int(self.window.packets) - self._under_way()
            if allowed < 1 or not self._may_begin(self._turns[0]):
                self._limited = True
                return
            self._advance(self._turns[0], allowed, now_s)

    def ask(self, now_s: float) -> None:
        """Ask about messages of which too long nothing was heard, and give up members that never
        answer."""
        for message in list(self._active.values()):
            if message.sent:
                self._give_up(message, now_s)
            if message.sent and now_s >= message.ask_s:
                self._probe(message, now_s)

    def _give_up(self, message: Outgoing, now_s: float) -> None:
        """Whoever has been silent for too long, however long it is until the next question."""
        for member in message.waiting():
            heard_s = max(self._heard_s.get(member, 0.0), message.begun_s)
            if now_s - heard_s > self._silence_s:
                self._lost(member, f"it confirmed nothing for {self._silence_s:g} s")

    def next_s(self) -> float:
        """When ``transmit`` or ``ask`` has something to do, unless something is heard before."""
        messages = self._active.values()
        asks = (message.ask_s for message in messages if message.sent)
        repairs = (repair.due_s for message in messages for repair in message.repairs.values())
        never = float("inf")
        return min(min(asks, default=never), min(repairs, default=never))

    def _find(self, group: int, folded: int) -> Outgoing | None:
        matching = (m for m in self._active.values() if m.group == group)
        return next((m for m in matching if m.number % 0x10000 == folded), None)

    def _finish(self, message: Outgoing) -> None:
        number = (message.group, message.number)
        if message.done and number in self._active:
            del self._active[number]
            if message in self._turns:
                self._turns.remove(message)
            message.handed_over.set()

    def _under_way(self) -> int:
        return sum(message.sent - message.reached() for message in self._active.values())

    def _may_begin(self, message: Outgoing) -> bool:
        """Receivers keep room for so many messages of a group after the first that is not
        complete."""
        first = min(number for group, number in self._active if group == message.group)
        return message.number < first + AHEAD // 2

    def _wait(self, message: Outgoing, now_s: float, asks: int) -> None:
        message.asks = asks
        message.ask_s = now_s + self._trip.patience_s(asks)

    def _advance(self, message: Outgoing, allowed: int, now_s: float) -> None:
        """Send the next packets of a message."""
        count = min(SLOTS, allowed, message.count - message.sent)
        message.begun_s = message.begun_s or now_s
        indices = range(message.sent, message.sent + count)
        flags = self._flags(count, indices.stop == message.count, now_s)
        to, members = self.groups[message.group], list(message.members)
        taken, stamp_us = self._transmitter.packets(message, indices, flags, to, members)
        self.blocked = taken < count
        if not taken:
            return
        message.stamp(taken, stamp_us)
        self._unasked = (self._unasked + taken) % self._every()
        self._wait(message, now_s, message.asks)
        if message.sent == message.count:
            self._turns.popleft()
            message.handed_over.set()

    def _every(self) -> int:
        packets = int(self.window.packets)
        return max(1, min(3, packets // 2), packets // _ASKS_PER_WINDOW)

    def _flags(self, count: int, to_the_end: bool, now_s: float) -> list[int]:
        """Some packets ask for a report, and the last of a message does."""
        rest = int(Flag.REST) if self.window.resting(now_s) else 0
        every = self._every()
        asks = [(self._unasked + n) % every == every - 1 for n in range(count)]
        asks[-1] = asks[-1] or to_the_end
        return [rest | (Flag.ASK if ask else 0) for ask in asks]

    def _repair(self, message: Outgoing, now_s: float) -> bool:
        """Send again what is due; False when the kernel takes no more."""
        wanted: dict[int | None, list[int]] = defaultdict(list)
        for index, members in message.due(now_s):
            wanted[None if len(members) >= _FEW else next(iter(members))].append(index)
        return all(
            self._repair_some(message, member, indices[begin : begin + SLOTS], now_s)
            for member, indices in wanted.items()
            for begin in range(0, len(indices), SLOTS)
        )

    def _repair_some(
        self, message: Outgoing, member: int | None, indices: Sequence[int], now_s: float
    ) -> bool:
        flags = [int(Flag.REPAIR)] * len(indices)
        flags[-1] |= Flag.ASK
        to = self.groups[message.group] if member is None else self._addresses[member]
        members = list(message.members) if member is None else [member]
        taken, stamp_us = self._transmitter.packets(message, indices, flags, to, members)
        message.stamp_repairs(indices[:taken], stamp_us)
        if taken:
            self._wait(message, now_s, message.asks)
        return taken == len(indices)

    def _probe(self, message: Outgoing, now_s: float) -> None:
        waiting = message.waiting()
        group = (self.groups[message.group], list(message.members))
        one_by_one = [(self._addresses[member], [member]) for member in waiting]
        for to, members in [group] if len(waiting) > _FEW else one_by_one:
            self._transmitter.word(
                Flag.PROBE | Flag.ASK,
                (message.group, message.number),
                message.sent,
                clock_us(time.monotonic_ns()),
                b"",
                to,
                members,
            )
        self._wait(message, now_s, message.asks + 1)
