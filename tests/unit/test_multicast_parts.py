"""The multicast protocol's parts: datagrams, reports, windows, messages coming together; garbage of every kind."""

from __future__ import annotations

import random

import numpy as np
import pytest

from testbed.errors import WireError
from testbed.node import Kind
from testbed.transport.frame import HEADER_BYTES as FRAME_HEADER
from testbed.transport.frame import FrameHeader
from testbed.transport.multicast.packet import (
    DATAGRAM,
    HEADER_BYTES,
    HEADERS_ON_LINK,
    LAYOUT,
    MOST_RANGES,
    PAYLOAD,
    ReceiverReport,
    clock_us,
    fold,
    packets_of,
    ranges,
    since,
)
from testbed.transport.multicast.receiver import (
    AHEAD,
    Datagram,
    Frames,
    Incoming,
    MulticastStream,
    PathDelay,
    Receiving,
)
from testbed.transport.multicast.udp import HEADER, MulticastCounters, Outgoing, group_address

RUN, SENDER = 0xFEED_0000_BEEF, 3
FRAMES = Frames(RUN, 1 << 20)


def frame(length: int, run: int = RUN, sender: int = SENDER) -> bytes:
    body = random.Random(length).randbytes(length)
    return FrameHeader(Kind.GRADIENT, sender, run, 1, 2, length, 99).pack() + body


def packets(stream: bytes) -> list[tuple[int, memoryview, bool]]:
    count = packets_of(len(stream))
    view = memoryview(stream)
    return [(n, view[n * PAYLOAD : (n + 1) * PAYLOAD], n == count - 1) for n in range(count)]


def put(part: Incoming, packet: tuple[int, memoryview, bool]) -> bool:
    return part.put(*packet, arrived_ns=5, now_ns=6)


def test_the_header_is_small_and_the_same_to_struct_and_numpy() -> None:
    assert HEADER_BYTES == LAYOUT.size == HEADER.itemsize == 20
    full = HEADERS_ON_LINK + DATAGRAM
    assert (full - PAYLOAD) / full <= 0.042
    raw = LAYOUT.pack(0xB1, 5, 3, 0xDEADBEEF, 7, 0xFFFE, 123_456, 0xFFFFFFFF)
    assert np.frombuffer(raw, HEADER)[0].tolist() == LAYOUT.unpack(raw)


def test_times_wrap() -> None:
    late = clock_us((1 << 32) * 1000 - 2000)
    assert since(late, clock_us((1 << 32) * 1000 + 3000)) == 5
    assert since(5, 2) == -3


def test_reports_come_back_as_they_were() -> None:
    report = ReceiverReport(1234, 5, ((0, 1), (7, 300)))
    assert ReceiverReport.unpack(report.pack()) == report
    many = ReceiverReport(0, 0, tuple((2 * n, 1) for n in range(MOST_RANGES + 50)))
    assert len(ReceiverReport.unpack(many.pack()).missing) == MOST_RANGES
    for length in (0, 7, 9, 8 + 8 * (MOST_RANGES + 1)):
        with pytest.raises(WireError):
            ReceiverReport.unpack(bytes(length))


def test_ranges() -> None:
    assert ranges({5, 3, 4, 9}) == ((3, 3), (9, 1))
    assert ranges(()) == ()
    assert len(ranges(range(0, 1000, 2))) == MOST_RANGES


def test_groups_have_addresses_of_their_own() -> None:
    addresses = [group_address(RUN, number) for number in range(300)]
    assert len(set(addresses)) == 300
    assert all(address.startswith("239.") for address in addresses)
    with pytest.raises(ValueError, match="group"):
        group_address(RUN, 1 << 16)


@pytest.mark.parametrize("length", [0, 1, 1000, PAYLOAD - FRAME_HEADER, PAYLOAD, 100_000])
def test_a_message_comes_together_in_any_order(length: int) -> None:
    whole = frame(length)
    for seed in range(5):
        shuffled = packets(whole)
        random.Random(seed).shuffle(shuffled)
        part = Incoming(FRAMES, SENDER)
        for packet in shuffled:
            assert not part.complete
            assert put(part, packet)
            assert not put(part, packet)
        assert part.complete
        assert part.stream == whole


def test_what_is_missing_is_known() -> None:
    part = Incoming(FRAMES, SENDER)
    parts = packets(frame(20 * PAYLOAD))
    for packet in parts:
        if packet[0] not in (0, 4, 5, 20):
            put(part, packet)
    assert (part.reached, ranges(part.missing)) == (20, ((0, 1), (4, 2)))
    for index in (20, 0, 4):
        put(part, parts[index])
    assert not part.complete
    put(part, parts[5])
    assert part.complete


@pytest.mark.parametrize(
    "wrong",
    [
        (0, memoryview(b"short"), False),
        (0, memoryview(frame(5000, run=RUN + 1))[:PAYLOAD], False),
        (0, memoryview(frame(5000, sender=4))[:PAYLOAD], False),
        (0, memoryview(frame(100))[:140], False),
        (0, memoryview(b"NRWS" + bytes(PAYLOAD - 4)), False),
        (1, memoryview(bytes(PAYLOAD - 1)), False),
        (1, memoryview(b""), True),
        (1 << 31, memoryview(bytes(PAYLOAD)), False),
    ],
)  # fmt: skip
def test_packets_that_cannot_be_are_refused(wrong: tuple[int, memoryview, bool]) -> None:
    part = Incoming(FRAMES, SENDER)
    if wrong[1].nbytes == 140:
        wrong = (0, memoryview(bytes(wrong[1]) + b"more"), True)
    with pytest.raises(WireError):
        put(part, wrong)
    assert len(part.stream) == 0
    assert part.reached == 0
    for packet in packets(frame(10 * PAYLOAD)):
        put(part, packet)
    assert part.complete


def test_no_memory_is_taken_for_what_a_header_promises() -> None:
    """4 GiB are announced; no message of this run is so long."""
    header = FrameHeader(Kind.GRADIENT, SENDER, RUN, 0, 0, 4 << 30, 0).pack()
    part = Incoming(FRAMES, SENDER)
    with pytest.raises(WireError):
        put(part, (0, memoryview(header + bytes(PAYLOAD - len(header))), False))
    assert len(part.stream) == 0


def test_random_bytes_are_refused_or_harmless() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        part = Incoming(FRAMES, SENDER)
        for _ in range(5):
            payload = memoryview(chance.randbytes(chance.choice([0, 39, 40, 1000, PAYLOAD])))
            try:
                put(
                    part,
                    (
                        chance.choice([0, 1, 2, chance.getrandbits(32)]),
                        payload,
                        chance.random() < 0.3,
                    ),
                )
            except WireError:
                continue
        assert not part.complete
        assert len(part.missing) < 40_000


def test_messages_are_delivered_in_their_order() -> None:
    stream = MulticastStream(FRAMES, SENDER)
    for number in (1, 0):
        _, part = stream.find(number)
        assert part is not None
        assert stream.ready() == []
        put(part, packets(frame(10))[0])
    assert len(stream.ready()) == 2
    assert stream.find(0) == (0, None)
    assert stream.find(1) == (1, None)
    with pytest.raises(WireError):
        stream.find(2 + AHEAD)


def test_message_numbers_wrap() -> None:
    stream = MulticastStream(FRAMES, SENDER, next=0x1FFFE)
    assert [stream.find(folded)[0] for folded in (0xFFFD, 0xFFFE, 0xFFFF, 0, 1)] == [
        0x1FFFD, 0x1FFFE, 0x1FFFF, 0x20000, 0x20001
    ]  # fmt: skip


def test_the_least_way_is_what_delay_counts_from() -> None:
    way = PathDelay()
    for took in (900, 400, 700, 600):
        way.passed(1000, 1000 + took, rest=False)
        queued = way.queued_us(0)
    assert queued == 200
    assert way.queued_us(25_000) == 15_000  # the receiver is far behind
    way.passed(0, 50_000, rest=True)
    assert way.queued_us(0) == 0


def test_of_packets_between_two_questions_the_quickest_says_how_long_the_queue_is() -> None:
    """One that came late says nothing; nor does anything from before the last question."""
    way = PathDelay()
    queued = []
    for several in ((400,), (900, 500, 700), (1200, 1400), (450,)):
        for took in several:
            way.passed(1000, 1000 + took, rest=False)
        queued.append(way.queued_us(0))
    assert queued == [0, 100, 800, 50]
    assert way.queued_us(0) == 0, "nothing has come since"


def outgoing(count: int, members: tuple[int, ...] = (1, 2)) -> Outgoing:
    made = Outgoing(0, 0, members, frame(count * PAYLOAD - FRAME_HEADER))
    assert made.count == count
    return made


def test_what_was_sent_before_the_answered_packet_and_is_missing_is_lost() -> None:
    message = outgoing(10)
    message.stamp(4, 100)
    message.stamp(4, 200)
    report = ReceiverReport(0, 0, ((2, 1),))
    assert message.on_report(1, 5, False, report, 200, now_s=1.0) == 1
    assert message.due(2.0) == [(2, {1})]
    assert (
        message.on_report(2, 3, False, ReceiverReport(0, 0, ()), 200, now_s=1.0) == 1
    )  # the fourth of the first batch
    assert message.on_report(2, 3, False, ReceiverReport(0, 0, ()), 300, now_s=1.0) == 4
    assert message.due(2.0)[0] == (2, {1})


def test_a_repair_is_not_repeated_before_it_can_have_arrived() -> None:
    message = outgoing(3)
    message.stamp(3, 100)
    missing = ReceiverReport(0, 0, ((0, 1),))
    message.on_report(1, 3, False, missing, 100, 1.0)
    assert message.due(1.0) == []  # others may miss it, too
    message.stamp_repairs([0], 500)
    assert message.on_report(1, 3, False, missing, 100, 1.0) == 0
    assert message.on_report(1, 3, False, missing, 500, 1.0) == 0
    assert message.on_report(1, 3, False, missing, 600, 1.0) == 1


def test_done_when_every_member_has_it() -> None:
    message = outgoing(3)
    message.stamp(3, 100)
    message.on_report(1, 0, True, ReceiverReport(0, 0, ()), 100, 1.0)
    assert (message.reached(), message.waiting(), message.done) == (0, [2], False)
    message.on_report(2, 3, False, ReceiverReport(0, 0, ((1, 1),)), 100, 1.0)
    message.drop(2)
    assert message.done
    assert not message.repairs
    with pytest.raises(ValueError, match="report"):
        outgoing(3).on_report(1, 1, False, ReceiverReport(0, 0, ()), 0, 1.0)


def test_a_run_is_folded() -> None:
    assert fold(0x1234_5678_0000_0001) == 0x1234_5679


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_message_has_arrived_with_its_latest_packet(order: tuple[int, ...]) -> None:
    """Packets of two sockets may be read in another order than they came."""
    part, parts = Incoming(FRAMES, SENDER), packets(frame(2 * PAYLOAD + 5))
    times_ns = (50, 90, 70)
    for turn, at in enumerate(order):
        part.put(*parts[at], arrived_ns=times_ns[at], now_ns=100 + turn)
    assert part.complete and (part.first_ns, part.arrived_ns) == (100, 90)


def test_of_a_sender_that_is_gone_nothing_is_waited_for() -> None:
    delivered: list[Incoming] = []
    receiving = Receiving(FRAMES, None, {}, MulticastCounters(), lambda part, _: delivered.append(part))  # type: ignore[arg-type]  # fmt: skip
    receiving.senders = {0: frozenset({SENDER, 4}), 1: frozenset({SENDER})}
    stream = frame(2 * PAYLOAD)
    for sender, group in ((SENDER, 0), (SENDER, 1), (4, 0)):
        index, payload, _ = packets(stream if sender == SENDER else frame(2 * PAYLOAD, sender=4))[0]
        receiving.take(Datagram(0, sender, group, 0, index, 1, payload, 2_000, 10**9))
    assert receiving.silent(1.5) == {SENDER, 4} and receiving.silent(0.5) == set()
    receiving.drop(SENDER)
    assert receiving.silent(1.5) == {4} and delivered == []
