"""How many packets a sender may have under way: kept where queues on the way hold ``TARGET_US`` of delay.

As in LEDBAT (RFC 6817), what is held constant is the delay that packets meet in queues, measured at the receivers and
one way, so that what happens on the way back does not matter. Loss counts where it comes with delay, or is
heavy: loss on an idle link is the link's own.
"""

from __future__ import annotations

from dataclasses import dataclass

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
class Window:
    """Of one sender, over all its groups; kept from message to message."""

    packets: float = _FIRST
    starting: bool = True
    """Doubling every round trip, until the first delay."""
    _cut_s: float = float("-inf")
    _above_least_s: float | None = None

    def progressed(self, packets: int, queued_us: int, now_s: float, limited: bool) -> None:
        """The slowest member has that many more; ``limited``: the window, not a want of data, has held us up."""
        if self.packets > LEAST or self._above_least_s is None:
            self._above_least_s = now_s
        change = self._change(packets, queued_us)
        if limited or change < 0:
            self._set(self.packets + change)

    def lost(self, share: float, queued_us: int, now_s: float, round_trip_s: float) -> None:
        """Of the packets sent lately ``share`` did not come to some member; one cut every round trip."""
        blamed = queued_us > TARGET_US / 2 or share > _HEAVY_LOSS
        if blamed and now_s - self._cut_s > round_trip_s:
            self.starting = False
            self._cut_s = now_s
            self._set(self.packets * _CUT)

    def resting(self, now_s: float) -> bool:
        """Whether it has been at its least for so long that the delay measured cannot be its own."""
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
class RoundTrip:
    """How long an answer takes (RFC 6298's way of estimating it), in seconds."""

    mean_s: float = _LEAST_WAIT_S
    spread_s: float = 0.0

    def measured(self, took_s: float) -> None:
        """One answer took so long."""
        self.spread_s += (abs(took_s - self.mean_s) - self.spread_s) / 4
        self.mean_s += (took_s - self.mean_s) / 8

    def patience_s(self, asked: int) -> float:
        """How long to wait for an answer after having asked in vain so often."""
        wait_s = max(_LEAST_WAIT_S, self.mean_s + 4 * self.spread_s)
        return min(_MOST_WAIT_S, wait_s * (1 << min(asked, 10)))
