"""An outage's arithmetic against a model of how the kernel charges a class."""

from __future__ import annotations

import pytest

from testbed.links.outage import LONGEST_NS, RENEW_NS, Outage, charge_of
from testbed.links.plan import MAX_SEGMENTS, TICK_NS, Pace
from testbed.scenario.shape import FRAME_BYTES

MS, S = 1_000_000, 1_000_000_000
KERNEL_FORGETS_NS = 60 * S


def costs_ns(pace: Pace, packet_bytes: int = 1514) -> float:
    return max(packet_bytes, pace.mpu_bytes) * 1e9 / pace.rate_bytes


class Class:
    """The kernel's class with packets waiting: sends whenever it may, at what it is set to."""

    def __init__(self) -> None:
        self.pace = Pace(1_250_000, 15_625)
        self.awake_ns = 0
        self.sent: list[int] = []
        self.debt_ns = 0

    def run_until(self, now_ns: int) -> None:
        while self.awake_ns <= now_ns:
            self.sent.append(self.awake_ns)
            self.debt_ns = min(round(costs_ns(self.pace)), KERNEL_FORGETS_NS)
            self.awake_ns += max(self.debt_ns, 1)


@pytest.mark.parametrize("time_ns", [MS, 17 * MS, 2 * S, LONGEST_NS])
def test_a_charge_lasts_what_is_asked(time_ns: int) -> None:
    pace = charge_of(time_ns)
    assert MAX_SEGMENTS * FRAME_BYTES <= pace.mpu_bytes <= 65_535
    assert costs_ns(pace) == pytest.approx(time_ns, abs=0.5 * MS)
    assert pace.burst_ticks * TICK_NS < 1000


@pytest.mark.parametrize("length_ns", [20 * MS, 500 * MS, 2 * S, 49 * S, 130 * S])
def test_a_busy_class_sleeps_through_and_wakes_on_time(length_ns: int) -> None:
    begin = 3 * S
    end, kernel = begin + length_ns, Class()
    kernel.awake_ns = begin + 700_000
    outage = Outage(ends_ns=end, packets=0)
    now = begin
    while now < end:
        pace = outage.charging(now)
        if pace is not None:
            kernel.pace = pace
            kernel.run_until(now)
            if outage.saw(now, len(kernel.sent), kernel.debt_ns):
                kernel.pace = Pace(2_500_000, 15_625)
        now += RENEW_NS
        kernel.run_until(min(now, end - 1))
    charges = 1 + (length_ns - 1) // LONGEST_NS
    assert len([at for at in kernel.sent if at < end - RENEW_NS]) <= charges + 1
    assert end - RENEW_NS <= kernel.awake_ns <= end + 2 * RENEW_NS


def test_an_idle_class_is_charged_what_is_left_when_it_sends() -> None:
    outage = Outage(ends_ns=10 * S, packets=5)
    assert costs_ns(outage.charging(7 * S) or Pace(1, 1)) == pytest.approx(3 * S, rel=1e-3)
    assert not outage.saw(7 * S, 5, 0)
    assert costs_ns(outage.charging(9 * S) or Pace(1, 1)) == pytest.approx(1 * S, rel=1e-3)
    assert outage.saw(9 * S, 6, 1 * S)
    assert outage.charging(9 * S + 1) is None


def test_an_old_debt_is_not_taken_for_the_charge() -> None:
    outage = Outage(ends_ns=2 * S, packets=5)
    assert not outage.saw(0, 5, 3 * S)
    assert outage.charging(0) is not None


def test_an_end_that_is_not_known_yet_moves_on() -> None:
    outage = Outage(ends_ns=10 * S, packets=0)
    assert outage.saw(0, 1, 10 * S)
    assert outage.charging(1 * S) is None
    outage.ends_ns = 40 * S
    assert outage.charging(1 * S) is None
    pace = outage.charging(9_800 * MS)
    assert pace is not None
    assert costs_ns(pace) == pytest.approx(30 * S, rel=1e-3)
