"""Delay lines in use: changed in place, beside a queue, marked, in slots, seeded, interfered with."""

from __future__ import annotations

import socket
import struct
import threading
import time
from itertools import pairwise

import pytest
from chance import by_chance, expect_share
from lines_rig import (
    DOWN,
    MBIT,
    MS,
    UP,
    Lines,
    arrivals,
    flood,
    least_ms,
    numbers,
    send_stamped,
    shape,
)

from testbed.errors import MachineError
from testbed.links.network import devices, namespaces
from testbed.links.tc import netem
from testbed.links.tc.netlink import NetlinkChannel
from testbed.links.tc.parameters import limit_packets
from testbed.scenario.link_state import FRAME_BYTES, NONE, Impairments, LinkChange, Slot
from testbed.transport.frame_reader import ask_for_stamps


def test_changes_in_the_middle_of_a_flow(lines: Lines) -> None:
    """60 ms, then everything lost for a while, then clear: nothing is forgotten, nothing stays."""
    held = lines.prepare({UP: shape(NONE)}, impaired=(UP,))[UP]
    assert held["line"]["impairments"] == {}
    stages = [
        (1.0, Impairments(delay_ns=60 * MS, jitter_ns=1 * MS, distribution="pareto")),
        (2.0, Impairments(delay_ns=60 * MS, loss=1.0)),
        (3.0, NONE),
    ]
    with lines.receiver() as far, lines.sender() as near:
        ask_for_stamps(far)
        t0 = lines.start([LinkChange(at, UP, shape(chosen)) for at, chosen in stages])
        sent: dict[int, int] = {}
        while len(lines.changes()) < len(stages):
            sent |= send_stamped(near, range(len(sent), len(sent) + 25), 0.002)
        sent |= send_stamped(near, range(len(sent), len(sent) + 100), 0.002)
        took = {arrival.number: arrival.took_ms for arrival in arrivals(far)}
        report = lines.agent.stop()
    told = [record["applied_s"] for record in lines.changes()]
    edges = [-1.0, *told, 1e9]
    since_t0 = {number: (at - t0) / 1e9 for number, at in sent.items()}
    # a packet has left by the time at which the next one is sent: its sender may have to wait for a processor
    stage = [
        [
            number
            for number, at in since_t0.items()
            if begin + 0.03 < at and since_t0.get(number + 1, at) < end - 0.03
        ]
        for begin, end in pairwise(edges)
    ]
    assert min(len(members) for members in stage) > 20, told
    assert not [number for number in stage[2] if number in took]
    before, slow, after = (sorted(took[number] for number in stage[n]) for n in (0, 1, 3))
    # A busy machine makes some late, and none early.
    assert min(slow) >= 59 and slow[len(slow) // 5] <= 62
    assert max(before[len(before) // 5], after[len(after) // 5]) < 2
    (link,) = report.links
    assert (link.changes, link.failure, link.line_limit) == (3, None, 0)
    assert link.line_lost == len(sent) - len(took)


def test_drops_of_the_queue_and_losses_are_counted_apart(lines: Lines) -> None:
    def trial(seed: int | None) -> None:
        lossy = shape(Impairments(delay_ns=5 * MS, loss=0.5, seed=seed), rate_bits=MBIT)
        lines.prepare({UP: type(lossy)(MBIT, 50_000, impairments=lossy.impairments)})
        with lines.receiver() as far, lines.sender() as near:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
            began = time.monotonic()
            for number in range(200):
                near.send(struct.pack("=I", number) + bytes(996))
            left_meanwhile = (time.monotonic() - began) * MBIT / (8 * 1042)
            came = numbers(far)
        (link,) = lines.report().links
        assert link.line_packets == link.class_packets
        assert link.line_lost is not None
        assert 148 - left_meanwhile <= link.drops <= 155  # 48 frames of 1042 B fit
        assert link.drops + link.class_packets == 200
        assert link.class_packets - link.line_lost == len(came)
        expect_share(link.line_lost, 0.5, link.class_packets)

    by_chance(lines, trial)


def test_a_new_rate_acts_on_what_waits_and_not_on_what_is_on_its_way(lines: Lines) -> None:
    chosen = Impairments(delay_ns=200 * MS)
    lines.prepare({UP: shape(chosen, rate_bits=MBIT // 10)})
    with lines.receiver() as far, lines.sender() as near:
        ask_for_stamps(far)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        t0 = lines.start([LinkChange(0.5, UP, shape(chosen))])
        sent = send_stamped(near, range(40), 0.0, size=1000)
        came = arrivals(far)
        lines.agent.stop()
    took = {arrival.number: arrival.took_ms for arrival in came}
    assert len(took) == 40
    # 1042 B take 83 ms each, and none comes early; a busy machine makes the first ones late.
    assert 200 <= took[0] < 300
    assert took[1] >= 200 and took[3] >= 200 + 83
    (applied_s,) = (told["applied_s"] for told in lines.changes())
    # all the rest at once, from somewhere between when it was due (half a bundle early) and when the kernel had it
    earliest, latest = (1e3 * at_s - (sent[39] - t0) / 1e6 for at_s in (0.495, applied_s))
    assert earliest + 200 <= took[39] < latest + 300


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
    lines.impair(Impairments(slot=Slot(200 * MS, 200 * MS, packets=5)))
    with lines.receiver() as far, lines.sender() as near:
        ask_for_stamps(far)
        send_stamped(near, range(30), 0.0)
        took = [arrival.took_ms for arrival in arrivals(far)]
    assert len(took) == 30
    gaps = [after - before for before, after in pairwise(took)]
    assert sum(gap > 100 for gap in gaps) in (5, 6)


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
    with NetlinkChannel(lines.cables["a"].port.netns) as switch:
        found = devices.find(switch, device)
        assert found is not None
        switch.send(netem.set_line(found.index, netem.NetemState(chosen, 10)))
    assert lines.counted(50) < 50
    (link,) = lines.report().links
    assert link.line_limit is not None
    assert link.line_limit >= 39
    assert link.line_lost == 0
    assert "limit" in (link.failure or "") or "10 packets" in (link.failure or "")


def test_a_line_that_was_changed_for_a_while_is_reported_with_the_time(lines: Lines) -> None:
    """It is right again at the end: only the looks at it in between can tell."""
    chosen = Impairments(delay_ns=100 * MS)
    device = lines.impair(chosen)["line"]["device"]
    t0 = lines.start([])
    with NetlinkChannel(lines.cables["a"].port.netns) as switch:
        found = devices.find(switch, device)
        assert found is not None
        limit = limit_packets(2000 * MBIT, 4_000_000, chosen)
        changed_s = []
        for held in (Impairments(delay_ns=50 * MS), chosen):
            time.sleep(1.7)  # it is looked at once a second
            switch.send(netem.set_line(found.index, netem.NetemState(held, limit)))
            changed_s.append((time.monotonic_ns() - t0) / 1e9)
        give_up = time.monotonic() + 20
        while not any(told["kind"] == "mismatch" for told in lines.samples):
            assert time.monotonic() < give_up
            time.sleep(0.05)
    (link,) = lines.agent.stop().links
    assert link.failure is None
    (wrong,) = link.mismatches
    assert wrong["what"] == "line"
    assert "50000000" in wrong["held"]
    assert "100000000" in wrong["asked"]
    assert 0 < wrong["from_s"] < changed_s[0] < changed_s[1] < wrong["to_s"] + 0.01


def test_a_line_goes_when_it_is_not_needed_any_more(lines: Lines) -> None:
    with lines.echo() as near:
        for at in ("nic", "network", "nic"):
            lines.impair(Impairments(delay_ns=40 * MS), at={"a": at})
            assert 40 <= least_ms(near, 60) < 60
            held = lines.prepare({UP: shape(NONE)}, at={"a": at})[UP]
            assert held["line"] is None
            assert least_ms(near, 20) < 20
