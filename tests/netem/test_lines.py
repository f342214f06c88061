"""What delay lines do to packets: every impairment by what arrives, within what chance allows."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from math import sqrt
from statistics import fmean, median

import pytest
from lines_rig import (
    DOWN,
    MBIT,
    MS,
    UP,
    Lines,
    arrivals,
    flood,
    make_lines,
    numbers,
    send_stamped,
    shape,
    stamp_arrivals,
)

from testbed.errors import MachineError
from testbed.links import delays, devices, namespaces, netem
from testbed.links.netlink import Netlink
from testbed.scenario.impairments import NONE, GilbertElliott, Impairments, Slot
from testbed.scenario.shape import FRAME_BYTES, End, LinkChange

SURE = 3.29
"""So many standard deviations hold 99.9 % of what chance makes."""


@pytest.fixture
def lines() -> Iterator[Lines]:
    with make_lines() as made:
        yield made


def within(found: float, share: float, of: int) -> bool:
    """Whether a count is inside the 99.9 % interval of a binomial distribution."""
    return abs(found - share * of) <= SURE * sqrt(of * share * (1 - share)) + 1


@pytest.mark.parametrize(("end", "at"), [(UP, "nic"), (UP, "network"), (DOWN, "nic")])
def test_the_least_round_trip_is_the_delay(lines: Lines, end: End, at: str) -> None:
    with lines.echo() as near:
        for delay_ms in (1, 20, 100):
            held = lines.impair(Impairments(delay_ns=delay_ms * MS), end, at={"a": at})
            assert held["line"]["impairments"] == {"delay_ns": delay_ms * MS}
            assert held["line"]["device"] != held["device"]
            least = min(_round_trip_ms(near) for _ in range(10))
            assert delay_ms <= least <= 1.02 * delay_ms + 1


def _round_trip_ms(near: socket.socket) -> float:
    began = time.monotonic()
    near.send(b"ping")
    near.recv(100)
    return (time.monotonic() - began) * 1e3


@pytest.mark.parametrize("distribution", ["uniform", "normal", "pareto", "paretonormal"])
def test_jitter_spreads_delays_as_its_table_says(
    lines: Lines, distribution: delays.Distribution
) -> None:
    """A busy machine makes packets late, but not three times."""
    jitter_ms = 10
    asked = [50 + jitter_ms * entry / delays.DELAY_UNIT for entry in delays.entries(distribution)]
    chosen = Impairments(
        delay_ns=50 * MS, jitter_ns=jitter_ms * MS, distribution=distribution, ordered=False
    )
    lines.impair(chosen)
    assert any(spread_as(asked, _one_way(lines, 600)) for _ in range(3))


def _one_way(lines: Lines, count: int) -> list[float]:
    with lines.receiver() as far, lines.sender() as near:
        stamp_arrivals(far)
        send_stamped(near, range(count), 0.001)
        took = [arrival.took_ms for arrival in arrivals(far)]
    assert len(took) == count
    return took


def spread_as(asked: list[float], found: list[float]) -> bool:
    """Five quantiles, each within its interval, and 1 ms that a timer may be late."""
    ordered = sorted(found)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        doubt = SURE * sqrt(share * (1 - share) / len(found))
        lowest, highest = (asked[int((share + way * doubt) * len(asked))] for way in (-1, 1))
        if not lowest - 0.1 <= ordered[int(share * len(found))] <= highest + 1:
            return False
    return True


def test_random_loss(lines: Lines) -> None:
    lines.impair(Impairments(loss=0.01))
    came = lines.counted(200_000)
    assert within(200_000 - came, 0.01, 200_000)
    (link,) = lines.report().links
    assert link.line_packets is not None
    assert link.line_lost is not None
    assert (link.line_packets, link.line_lost) == (200_000, 200_000 - came)
    assert (link.drops, link.line_limit, link.failure) == (0, 0, None)


@pytest.mark.parametrize(
    ("place", "count", "bundle"), [("nic", 60_000, 60), ("network", 20_000, 1)]
)
def test_loss_in_bursts(lines: Lines, place: str, count: int, bundle: int) -> None:
    """``at: network`` the line comes first, where bundles of one socket have not been taken apart yet."""
    model = GilbertElliott(0.01, 0.25)
    lines.impair(Impairments(loss=model), at={"a": place})
    with lines.receiver() as far, lines.sender() as near:
        flood(near, count, bundle=bundle)
        came = numbers(far)
    bursts = [after - before - 1 for before, after in pairwise([-1, *came]) if after > before + 1]
    p, r, share = model.p, model.r, model.mean_loss
    spread = sqrt(share * (1 - share) / count * (2 - p - r) / (p + r))
    assert abs((count - len(came)) / count - share) <= SURE * spread
    assert abs(fmean(bursts) - model.mean_burst) <= SURE * sqrt((1 - r) / len(bursts)) / r
    assert abs(len(bursts) - share * r * count) <= SURE * sqrt(share * r * count) + 1


def test_correlated_loss_is_as_much_as_was_asked(lines: Lines) -> None:
    """Told 10 %, netem would lose 1.7 %; what is correlated scatters more."""
    lines.impair(Impairments(loss=0.1, loss_correlation=0.25))
    lost = 60_000 - lines.counted(60_000)
    assert abs(lost - 6000) <= SURE * sqrt(60_000 * 0.1 * 0.9 * 1.25 / 0.75)


def test_a_share_of_packets_overtakes(lines: Lines) -> None:
    count = 3000
    lines.impair(Impairments(delay_ns=100 * MS, reorder=0.1))
    with lines.receiver() as far, lines.sender() as near:
        stamp_arrivals(far)
        send_stamped(near, range(count), 0.0)
        came = arrivals(far)
    assert len(came) == count
    assert within(sum(arrival.took_ms < 50 for arrival in came), 0.1, count)
    late = [arrival.number for arrival in came if arrival.took_ms >= 50]
    assert late == sorted(late)


def test_a_share_of_packets_comes_twice(lines: Lines) -> None:
    lines.impair(Impairments(duplicate=0.05))
    with lines.receiver() as far, lines.sender() as near:
        flood(near, 20_000)
        came = numbers(far)
    assert set(came) == set(range(20_000))
    assert within(len(came) - 20_000, 0.05, 20_000)


def test_a_share_of_packets_is_corrupt(lines: Lines) -> None:
    """One bit of at least the 42 bytes of headers is turned: in 6 of them, the sender's, nobody minds."""
    lines.impair(Impairments(corrupt=0.05))
    lost = 20_000 - lines.counted(20_000)
    assert lost <= 1000 or within(lost, 0.05, 20_000)
    assert lost >= 857 or within(lost, 0.05 * 36 / 42, 20_000)
    (link,) = lines.report().links
    assert link.line_lost == 0


@pytest.mark.parametrize("ordered", [True, False])
def test_a_delay_that_falls_reorders_only_when_asked(lines: Lines, ordered: bool) -> None:
    slow, fast = (Impairments(delay_ns=delay * MS, ordered=ordered) for delay in (200, 10))
    lines.impair(slow)
    with lines.receiver() as far, lines.sender() as near:
        lines.start([LinkChange(0.1, UP, shape(fast))])
        send_stamped(near, range(150), 0.002)
        came = numbers(far)
        report = lines.agent.stop()
    assert sorted(came) == list(range(150))
    assert (came == sorted(came)) == ordered
    assert report.links[0].changes == 1
    (change,) = [record for record in lines.samples if record["kind"] == "change"]
    assert Impairments.from_json(change["impairments"]) == fast


def test_jitter_keeps_the_order_unless_asked(lines: Lines) -> None:
    for ordered in (True, False):
        lines.impair(Impairments(delay_ns=20 * MS, jitter_ns=10 * MS, ordered=ordered))
        with lines.receiver() as far, lines.sender() as near:
            flood(near, 500)
            came = numbers(far)
        assert sorted(came) == list(range(500))
        assert (came == sorted(came)) == ordered


def test_changes_in_the_middle_of_a_flow(lines: Lines) -> None:
    """60 ms, then everything lost for a while, then clear: nothing is forgotten, nothing stays."""
    held = lines.prepare({UP: shape(NONE)}, impaired=(UP,))[UP]
    assert held["line"]["impairments"] == {}
    stages = [
        (0.2, Impairments(delay_ns=60 * MS, jitter_ns=1 * MS, distribution="pareto")),
        (0.4, Impairments(delay_ns=60 * MS, loss=1.0)),
        (0.6, NONE),
    ]
    with lines.receiver() as far, lines.sender() as near:
        stamp_arrivals(far)
        t0 = lines.start([LinkChange(at, UP, shape(chosen)) for at, chosen in stages], 0.0)
        sent = send_stamped(near, range(400), 0.002)
        took = {arrival.number: arrival.took_ms for arrival in arrivals(far)}
        report = lines.agent.stop()
    told = [record["applied_s"] for record in lines.samples if record["kind"] == "change"]
    edges = [-1.0, *told, 9.0]
    stage = [
        [number for number, at in sent.items() if begin + 0.01 < (at - t0) / 1e9 < end - 0.01]
        for begin, end in pairwise(edges)
    ]
    assert all(len(members) > 40 for members in stage)
    assert not [number for number in stage[2] if number in took]
    before, slow, after = ([took[number] for number in stage[n]] for n in (0, 1, 3))
    assert 59 <= median(slow) <= 62
    assert max(median(before), median(after)) < 2
    (link,) = report.links
    assert (link.changes, link.failure, link.line_limit) == (3, None, 0)
    assert link.line_lost == 400 - len(took)


def test_drops_of_the_queue_and_losses_are_counted_apart(lines: Lines) -> None:
    lossy = shape(Impairments(delay_ns=5 * MS, loss=0.5), rate_bits=MBIT)
    lines.prepare({UP: type(lossy)(MBIT, 50_000, impairments=lossy.impairments)})
    with lines.receiver() as far, lines.sender() as near:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        for number in range(200):
            near.send(struct.pack("=I", number) + bytes(996))
        came = numbers(far)
    (link,) = lines.report().links
    assert link.line_packets == link.class_packets
    assert link.line_lost is not None
    assert 140 <= link.drops <= 155  # 48 frames of 1042 B fit, and some leave meanwhile
    assert link.drops + link.class_packets == 200
    assert link.class_packets - link.line_lost == len(came)
    assert within(link.line_lost, 0.5, link.class_packets)


def test_a_new_rate_acts_on_what_waits_and_not_on_what_is_on_its_way(lines: Lines) -> None:
    chosen = Impairments(delay_ns=200 * MS)
    lines.prepare({UP: shape(chosen, rate_bits=MBIT // 10)})
    with lines.receiver() as far, lines.sender() as near:
        stamp_arrivals(far)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        lines.start([LinkChange(0.5, UP, shape(chosen))])
        send_stamped(near, range(40), 0.0, size=1000)
        came = arrivals(far)
        lines.agent.stop()
    took = {arrival.number: arrival.took_ms for arrival in came}
    assert len(took) == 40
    assert 200 <= took[0] < 300
    assert 200 + 83 <= took[1] + 83 <= took[3]  # 1042 B take 83 ms each
    assert 600 < took[39] < 900  # all the rest at once, and 200 ms later it is there


def test_marked_instead_of_lost(lines: Lines) -> None:
    lines.impair(Impairments(loss=1.0, ecn=True))
    with lines.receiver() as far, lines.sender() as near:
        far.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        near.send(b"not capable")
        near.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)
        near.send(b"capable")
        data, ancillary, _, _ = far.recvmsg(100, 64)
    assert data == b"capable"
    assert ancillary[0][2][0] == 3


def test_packets_leave_in_slots(lines: Lines) -> None:
    lines.impair(Impairments(slot=Slot(50 * MS, 50 * MS, packets=5)))
    with lines.receiver() as far, lines.sender() as near:
        stamp_arrivals(far)
        send_stamped(near, range(30), 0.0)
        took = [arrival.took_ms for arrival in arrivals(far)]
    assert len(took) == 30
    gaps = [after - before for before, after in pairwise(took)]
    assert sum(gap > 30 for gap in gaps) in (5, 6)


def test_loss_hits_packets_and_not_bundles(lines: Lines) -> None:
    """With bundles one loss costs dozens of segments, each of which is sent again."""
    ends = {UP: shape(Impairments(loss=0.01), 50 * MBIT), DOWN: shape(NONE, 50 * MBIT)}
    lines.prepare(ends, segments=1)
    with namespaces.inside(lines.netns["b"]):
        listener = socket.create_server((lines.address["b"], 9000))
    with namespaces.inside(lines.netns["a"]):
        sender = socket.create_connection((lines.address["b"], 9000), timeout=20)
    with listener, sender:
        receiver, _ = listener.accept()
        thread = threading.Thread(target=_drain, args=(receiver,))
        thread.start()
        sender.sendall(bytes(3_000_000))
        info = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        sender.shutdown(socket.SHUT_WR)
        thread.join()
    (retransmits,) = struct.unpack_from("=I", info, 100)
    up = next(link for link in lines.report().links if link.direction == "up")
    assert up.line_lost is not None
    assert up.class_bytes <= up.class_packets * FRAME_BYTES
    assert up.line_lost >= 5
    assert retransmits <= 2 * up.line_lost + 5


def _drain(receiver: socket.socket) -> None:
    with receiver:
        while receiver.recv(1 << 16):
            pass


def test_a_seed_is_refused_or_repeats_itself(lines: Lines) -> None:
    chosen = Impairments(loss=0.3, seed=7)
    if "netem-seed" not in lines.agent.capabilities():
        with pytest.raises(MachineError, match="netem-seed"):
            lines.impair(chosen)
        return
    seen = []
    for _ in range(2):
        lines.impair(chosen)
        with lines.receiver() as far, lines.sender() as near:
            flood(near, 300)
            seen.append(numbers(far))
    assert seen[0] == seen[1]


def test_a_line_that_somebody_else_changed_is_reported(lines: Lines) -> None:
    chosen = Impairments(delay_ns=100 * MS)
    device = lines.impair(chosen)["line"]["device"]
    with Netlink(lines.cables["a"].port.netns) as switch:
        found = devices.find(switch, device)
        assert found is not None
        switch.send(netem.change(found.index, netem.options(chosen, 10)))
    assert lines.counted(50) < 50
    (link,) = lines.report().links
    assert link.line_limit is not None
    assert link.line_limit >= 39
    assert link.line_lost == 0
    assert "limit" in (link.failure or "") or "10 packets" in (link.failure or "")


def test_a_line_goes_when_it_is_not_needed_any_more(lines: Lines) -> None:
    with lines.echo() as near:
        for at in ("nic", "network", "nic"):
            lines.impair(Impairments(delay_ns=40 * MS), at={"a": at})
            assert 40 <= min(_round_trip_ms(near) for _ in range(5)) < 60
            held = lines.prepare({UP: shape(NONE)}, at={"a": at})[UP]
            assert held["line"] is None
            assert min(_round_trip_ms(near) for _ in range(5)) < 20
