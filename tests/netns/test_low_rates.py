"""Links are themselves again as soon as a low rate ends, and carry what their history asks for."""

from __future__ import annotations

import socket
import time
from itertools import pairwise

import pytest
from netns_rig import MBIT, Rig, Stalls

from testbed.links.network import namespaces
from testbed.records.manifest import THRESHOLDS
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState
from testbed.transport.frame_reader import ask_for_stamps, stamp

UP = LinkDirection("worker-0", "up")
QUEUE = 400_000
PORT = 9321
_SO_RCVBUFFORCE = 33
pytestmark = pytest.mark.timed


class Arrivals:
    """When datagrams came to the switch, by the kernel's own account, in seconds of the monotonic clock."""

    def __init__(self, rig: Rig) -> None:
        self.came_s: list[float] = []
        with namespaces.inside(rig.networks.switch_netns):
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        ask_for_stamps(self.socket)
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 24)
        self.socket.bind((rig.networks.switch_address, PORT))
        self.socket.settimeout(0.1)

    def take(self, stop_ns: int) -> None:
        while time.monotonic_ns() < stop_ns:
            try:
                _, ancillary, *_ = self.socket.recvmsg(64, 64)
            except TimeoutError:
                continue
            self.came_s.append(stamp(ancillary) / 1e9)

    def first_after(self, time_s: float) -> float:
        return min((at for at in self.came_s if at >= time_s), default=float("inf"))


def _send(address: str, stop_ns: int) -> None:
    """Keep the queue full: a socket's own buffer is shorter than it, and waits for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
        sender.settimeout(0.1)
        while time.monotonic_ns() < stop_ns:
            try:
                sender.sendto(bytes(1472), (address, PORT))
            except TimeoutError:
                continue


def replayed(rig: Rig, rates: list[tuple[float, int]], stop_s: float) -> tuple[Arrivals, float]:
    """The way up is backlogged all the time; arrivals are relative to t0.

    Last, the seconds after a change within which service must be back: what a verdict allows, after the change was
    made, on a machine that stalled for as long as it did.
    """
    shapes = [(at, LinkState(rate, QUEUE)) for at, rate in rates]
    rig.prepare({UP: shapes[0][1]})
    arrivals = Arrivals(rig)
    t0 = rig.start([LinkChange(at, UP, shape) for at, shape in shapes[1:]], lead_s=0.3)
    stop_ns = t0 + int(stop_s * 1e9)
    rig.inside(rig.networks.switch_netns, arrivals.take, stop_ns)
    rig.inside(rig.places["worker-0"].nic.netns, _send, rig.networks.switch_address, stop_ns)
    with Stalls() as stalls:
        rig.wait(stop_ns)
    (link,) = rig.stop().links
    arrivals.socket.close()
    arrivals.came_s = [at - t0 / 1e9 for at in arrivals.came_s]
    assert link.failure is None
    assert link.drops == 0
    assert link.direct_packets == 0
    assert link.mismatches == []
    assert link.busy_share > 0.9
    # what could have left while nobody ran, at most at the highest rate, is not made up for
    ends = [at for at, _ in rates[1:]] + [stop_s]
    asked_bits = sum((end - at) * rate for (at, rate), end in zip(rates, ends, strict=True))
    stalled = stalls.total_s * max(rate for _, rate in rates) / asked_bits
    assert link.ratio == pytest.approx(1.0, abs=THRESHOLDS.ratio_deviation + stalled)
    changes = [s for s in rig.samples if s["kind"] == "change"]
    assert [c["rate_bits"] for c in changes] == [rate for _, rate in rates[1:]]
    late_ms = (link.lateness_ms or {}).get("max") or 0.0
    return arrivals, (THRESHOLDS.resume_ms + late_ms) / 1e3 + stalls.worst_s


# every day rates from 1 to 500 kbit/s are in the tests below as well
@pytest.mark.parametrize("low", [1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_service_is_back_after_a_second_at_a_low_rate(rig: Rig, low: int) -> None:
    arrivals, back_s = replayed(rig, [(0, 50 * MBIT), (1.0, low), (2.0, 50 * MBIT)], 3.5)
    assert arrivals.first_after(2.0) - 2.0 <= back_s
    assert len([at for at in arrivals.came_s if 1.02 <= at < 1.98]) <= 3


def test_a_link_that_is_low_every_other_quarter_second(rig: Rig) -> None:
    rates = [(0.25 * n, 20_000 if n % 2 else 50 * MBIT) for n in range(16)]
    arrivals, back_s = replayed(rig, rates, 4.0)
    for (_, before), (at, now) in pairwise(rates):
        if now > before:
            assert arrivals.first_after(at) - at <= back_s


def test_low_rates_around_an_outage_and_step_by_step(rig: Rig) -> None:
    steps = [1_000, 0, 5_000, 100_000, 20_000, 500_000, 0, 3_000]
    low = [(1.0 + 0.2 * n, rate) for n, rate in enumerate(steps)]
    arrivals, back_s = replayed(rig, [(0, 50 * MBIT), *low, (2.6, 50 * MBIT)], 3.6)
    assert arrivals.first_after(2.6) - 2.6 <= back_s


def test_the_lowest_rates_can_be_set_and_read_back(rig: Rig) -> None:
    """Up to 40 bit/s a burst of one frame is longer than the kernel keeps of one."""
    rig.prepare({UP: LinkState(1, QUEUE)})
    t0 = rig.start([LinkChange(0.05 * n, UP, LinkState(n, QUEUE)) for n in (8, 43, 44)], lead_s=0.1)
    rig.wait(t0 + 300_000_000 + 44 * 50_000_000)
    (link,) = rig.stop().links
    assert link.failure is None
    assert link.mismatches == []
    assert link.changes == 3
