"""A history on running links: what was delivered against what was asked."""

from __future__ import annotations

import socket
import threading
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from netns_rig import (
    MBIT,
    Rig,
    Stalls,
    assert_nothing_left,
    make_rig,
    names_of,
    rate_of,
)

from testbed.links.agent.client import LinkReport
from testbed.links.network import namespaces
from testbed.links.replay.interval_errors import asked_between
from testbed.links.tc.parameters import bundle_segments
from testbed.records.manifest import THRESHOLDS
from testbed.scenario.link_state import FRAME_BYTES, LinkChange, LinkDirection, LinkState
from testbed.transport.frame_reader import ask_for_stamps, stamp

pytestmark = pytest.mark.timed


def square_wave(rig: Rig, seconds: float, hertz: int, low: int = 20, high: int = 100) -> LinkReport:
    """Both directions of the worker's link follow a square wave under bulk TCP."""
    ends, queue = rig.ends("worker-0"), high * MBIT // 8 // 20
    rig.prepare(
        {end: LinkState(high * MBIT, queue) for end in ends},
        segments=bundle_segments(low * MBIT, 1 / hertz),
    )
    changes = [
        LinkChange(n / hertz, end, LinkState((low if n % 2 else high) * MBIT, queue))
        for n in range(int((seconds + 1) * hertz))
        for end in ends
    ]
    t0 = rig.start(changes, lead_s=1.0)
    stop_ns = t0 + int(seconds * 1e9)
    for end in ends:
        rig.fill("worker-0", end.direction, stop_ns + 200_000_000)
    rig.wait(stop_ns)
    return rig.stop()


@pytest.mark.parametrize(("hertz", "seconds"), [(10, 6), (100, 3)])
def test_bulk_traffic_follows_the_trace(rig: Rig, hertz: int, seconds: float) -> None:
    report = square_wave(rig, seconds, hertz)
    for link in report.links:
        assert link.failure is None
        assert link.lateness_ms is not None
        assert link.lateness_ms["p99"] <= THRESHOLDS.lateness_p99_ms, link
        assert link.ratio is not None
        assert 0.98 <= link.ratio <= 1.01, link
        assert link.mape_1s is not None
        assert link.mape_1s <= 0.02, link
        assert link.direct_packets == 0
        assert link.changes >= seconds * hertz - 1  # at 0 s nothing changes
    kinds = {sample["kind"] for sample in rig.samples}
    assert kinds == {"change", "sample"}
    mine = [s for s in rig.samples if s["kind"] == "sample" and s["direction"] == "up"]
    assert all(a["to_s"] == b["from_s"] for a, b in pairwise(mine))
    up = next(link for link in report.links if link.direction == "up")
    assert sum(s["delivered_bits"] for s in mine) == up.delivered_bits
    wave = [(n / hertz, (20 if n % 2 else 100) * MBIT) for n in range(int((seconds + 1) * hertz))]
    asked = [asked_between(wave, sample["from_s"], sample["to_s"]) for sample in mine]
    # What is asked changes when a change is due, however late the kernel was told: a sample that ended between the two lacks the
    # difference, and the next one has it. The kernel is not told what is due at the very end.
    missing = accumulate(s["asked_bits"] - due for s, due in zip(mine[:-1], asked, strict=False))
    assert sum(abs(bits) > 10.0 for bits in missing) <= len(mine) / 10


class Receiver:
    """Takes in a TCP stream in a namespace and notes when bytes came, by the kernel's own account."""

    def __init__(self, rig: Rig) -> None:
        self.came: list[tuple[int, int]] = []
        with namespaces.inside(rig.networks.switch_netns):
            self._listener = socket.create_server((rig.networks.switch_address, 9000))
        ask_for_stamps(self._listener)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        connection, _ = self._listener.accept()
        with self._listener, connection:
            while True:
                try:
                    taken, ancillary, *_ = connection.recvmsg(1 << 18, 64)
                except OSError:
                    return
                if not taken:
                    return
                self.came.append((stamp(ancillary), len(taken)))

    def between(self, from_ns: int, to_ns: int) -> int:
        return sum(count for at, count in self.came if from_ns <= at < to_ns)


def through_outage(
    rig: Rig, shape: LinkState, from_s: float, to_s: float, after_s: float
) -> tuple[LinkReport, Receiver, int]:
    end = LinkDirection("worker-0", "up")
    running = rate_of(20 * MBIT, 0.1)
    rig.prepare({end: running})
    receiver = Receiver(rig)
    t0 = rig.start([LinkChange(from_s, end, shape), LinkChange(to_s, end, running)])
    stop_ns = t0 + int((to_s + after_s) * 1e9)
    rig.inside(rig.places["worker-0"].nic.netns, _blast, rig, stop_ns)
    rig.wait(stop_ns + 100_000_000)
    report = rig.stop()
    receiver.thread.join(5)
    return report, receiver, t0


def _blast(rig: Rig, stop_ns: int) -> None:
    from testbed.runner.bulk_flow import blast

    blast(rig.networks.switch_address, 9000, stop_ns)


@pytest.mark.parametrize("length_s", [0.1, 2.0])
def test_packets_wait_out_an_outage(rig: Rig, length_s: float) -> None:
    with Stalls() as stalls:
        report, receiver, t0 = through_outage(rig, LinkState(0, 250_000), 1.0, 1.0 + length_s, 1.5)
    stalled_s = stalls.worst_s
    (link,) = report.links
    begin, end = t0 + 1_000_000_000, t0 + int((1 + length_s) * 1e9)
    changes = [s for s in rig.samples if s["kind"] == "change"]
    late_ns = int(max(c["applied_s"] - c["due_s"] for c in changes) * 1e9)
    # What was on its way when service ended, and the one packet that carries the debt.
    assert receiver.between(begin + late_ns + 5_000_000, end - 1_000_000) <= 2 * FRAME_BYTES
    assert link.outage_bytes <= 4 * FRAME_BYTES
    first = next(at for at, _ in receiver.came if at >= end - 1_000_000)
    assert first - end <= THRESHOLDS.resume_ms * 1e6 + late_ns + stalled_s * 1e9
    assert link.drops == 0
    assert link.failure is None


def taken(receiver: socket.socket) -> int:
    """When the next packet came, by the kernel's own account."""
    _, ancillary, *_ = receiver.recvmsg(2000, 64)
    return stamp(ancillary)


def test_an_idle_link_comes_back_on_time(rig: Rig) -> None:
    end = LinkDirection("worker-0", "up")
    rig.prepare({end: rate_of(20 * MBIT)})
    changes = [
        LinkChange(0.2, end, LinkState(0, 125_000)),
        LinkChange(0.7, end, rate_of(20 * MBIT)),
    ]
    with namespaces.inside(rig.networks.switch_netns):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((rig.networks.switch_address, 9999))
    ask_for_stamps(receiver)
    with namespaces.inside(rig.places["worker-0"].nic.netns):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        sender.sendto(b"learn", (rig.networks.switch_address, 9999))
        receiver.settimeout(5)
        receiver.recv(100)
        t0 = rig.start(changes, lead_s=0.1)
        with Stalls() as stalls:
            rig.wait(t0 + 400_000_000)
            for _ in range(3):
                sender.sendto(bytes(1000), (rig.networks.switch_address, 9999))
            came_s = [(taken(receiver) - t0) / 1e9 for _ in range(3)]
        rig.stop()
    outage, back = [sample for sample in rig.samples if sample["kind"] == "change"]
    # One packet carries the debt; the others wait for the rate.
    assert outage["applied_s"] < 0.4 <= came_s[0] < 0.7 <= back["applied_s"]
    for at_s in came_s[1:]:
        assert 0 <= at_s - back["applied_s"] < THRESHOLDS.resume_ms / 1e3 + stalls.worst_s


def test_an_outage_from_the_start_lets_nothing_pass(rig: Rig) -> None:
    end = LinkDirection("worker-0", "up")
    rig.prepare({end: LinkState(0, 125_000)})
    receiver = Receiver(rig)
    t0 = rig.start([LinkChange(0.5, end, rate_of(20 * MBIT))], lead_s=0.2)
    stop_ns = t0 + 2_000_000_000
    rig.inside(rig.places["worker-0"].nic.netns, _blast, rig, stop_ns)
    rig.wait(stop_ns + 100_000_000)
    report = rig.stop()
    assert receiver.between(0, t0 + 500_000_000) == 0
    assert receiver.between(t0 + 500_000_000, stop_ns) > 100_000
    assert report.links[0].failure is None


def test_packets_are_lost_in_a_drop_outage(rig: Rig) -> None:
    report, receiver, t0 = through_outage(rig, LinkState(0, 250_000, drop=True), 1.0, 1.5, 2.5)
    (link,) = report.links
    assert receiver.between(t0 + 1_010_000_000, t0 + 1_500_000_000) <= 2 * FRAME_BYTES
    assert link.drops > 0
    assert receiver.between(t0 + 1_500_000_000, t0 + 5_000_000_000) > 1_000_000
    assert sum(s["drops"] for s in rig.samples if s["kind"] == "sample") <= link.drops


def test_two_runs_do_not_disturb_each_other(rig: Rig, tmp_path: Path) -> None:
    other = make_rig(tmp_path / "other")
    names = names_of(other)
    try:
        assert other.networks.control_host != rig.networks.control_host
        for each, rate in ((rig, 10), (other, 30)):
            each.prepare({end: rate_of(rate * MBIT) for end in each.ends("worker-0")})
        starts = [each.start([]) for each in (rig, other)]
        for each, t0 in zip((rig, other), starts, strict=True):
            each.fill("worker-0", "up", t0 + 2_600_000_000)
        rig.wait(max(starts) + 2_100_000_000)
        for each in (rig, other):
            up = next(link for link in each.stop().links if link.direction == "up")
            assert up.ratio is not None
            assert 0.95 < up.ratio < 1.01
    finally:
        other.fabric.destroy()
    assert_nothing_left(names)
    assert rig.agent.alive()
    rig.prepare({end: rate_of(10 * MBIT) for end in rig.ends("worker-0")})
