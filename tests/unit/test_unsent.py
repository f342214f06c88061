"""What a node hands over before it can leave: bounded where the most urgent bucket goes first."""

from __future__ import annotations

import select
import socket
import threading
import time

import pytest
from endpoint_rig import KINDS, Either, star
from virtual_links import LinkModel, network
from virtual_setup import job

from testbed.algorithm import Algorithm
from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.node import Kind, Message
from testbed.runner.experiment import unsent_bytes
from testbed.scenario.link_state import SEGMENT_BYTES, wire_bytes
from testbed.transport.epoll_endpoint import LoopOwner

RATE = 1e6
ROOM = 20 * SEGMENT_BYTES
LONG, SHORT = bytes(100 * SEGMENT_BYTES - 40), bytes(10 * SEGMENT_BYTES - 40)


def test_only_what_another_bucket_may_overtake_is_held_back() -> None:
    def asked(**changes: object) -> int | None:
        given = job(1, 2, "none")
        object.__setattr__(given, "algorithm", Algorithm("a", **changes))  # type: ignore[arg-type]
        return unsent_bytes(given)

    assert asked(overlap=True, bucket_bytes=1) == 32 << 10
    assert asked(overlap=True, bucket_bytes=1, order="backward") is None
    assert asked(bucket_bytes=1) is None


@pytest.mark.parametrize("kind", KINDS)
def test_sockets_are_told(kind: type[Either]) -> None:
    with star(kind, 1, unsent_bytes=30_000) as ((server, worker), _):
        for endpoint, expected in ((server, True), (worker, False)):
            (stream,) = endpoint._peers.values()
            option = stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
            assert (option == 30_000) is expected


NARROW, FAR = LinkModel(RATE, RATE), LinkModel(1e9, 1e9, 0.05)


def _times(
    unsent: int | None, *bodies: bytes, link: LinkModel = NARROW
) -> tuple[list[float], list[float]]:
    """When each of several messages is handed over, and when it has arrived; ``link``: the sender's."""
    clock = VirtualClock()
    net = network(clock, {"a": link, "b": LinkModel(1e9, 1e9)})
    ends = [VirtualEndpoint(net, 0, "a", unsent), VirtualEndpoint(net, 1, "b")]

    def send() -> list[float]:
        net.start()
        times = []
        for bucket, body in enumerate(bodies):
            ends[0].send([1], Message(Kind.GRADIENT, 1, bucket, 0, body))
            times.append(clock.now)
        return times

    def receive() -> list[float]:
        return [ends[1].receive(1000.0).arrived_s for _ in bodies]

    found = clock.run({"send": send, "receive": receive})
    return found["send"], found["receive"]


def _seconds(segments: float) -> float:
    return 8 * wire_bytes(SEGMENT_BYTES) * segments / RATE


def test_in_virtual_time_a_send_returns_when_little_is_left() -> None:
    (sent_s,), (arrived_s,) = _times(ROOM, LONG)
    assert sent_s == pytest.approx(_seconds(80), rel=0.02)
    assert arrived_s == pytest.approx(_seconds(100), rel=0.02)
    assert _times(None, LONG)[0] == [0.0]


def test_short_messages_share_the_room() -> None:
    sent_s, _ = _times(ROOM, SHORT, SHORT, SHORT, SHORT)
    assert sent_s == pytest.approx([0, 0, _seconds(10), _seconds(20)], rel=0.02)


def test_messages_arrive_no_later_than_without() -> None:
    _, held = _times(ROOM, LONG, SHORT, LONG)
    _, free = _times(None, LONG, SHORT, LONG)
    assert held == pytest.approx(free, rel=0.01)


def test_congestion_windows_bind_what_is_handed_over_in_pieces() -> None:
    """10, 20 and 40 segments in round trips of 100 ms, and then the rest: it is one message."""
    sent_s, held = _times(ROOM, LONG, link=FAR)
    _, free = _times(None, LONG, link=FAR)
    assert held == pytest.approx(free, rel=1e-3)
    assert held == pytest.approx([0.35], rel=0.01)
    assert sent_s == pytest.approx([0.3], rel=0.01)


def test_nobody_turns_a_loop_that_has_ended() -> None:
    """Nor does a thread that was about to when it ended."""
    turned = []
    turns = LoopOwner(turned.append)
    turns.end()
    before = len(turned)
    assert not turns._take(lambda: False, 0.1)
    assert not turns.run_until(lambda: False, time.monotonic() + 0.1)
    assert len(turned) == before


def test_two_that_wait_for_the_loop_let_it_rest() -> None:
    turned = 0

    def once(timeout_s: float) -> None:
        nonlocal turned
        turned += 1
        if select.select([turns.waker], [], [], timeout_s)[0]:
            turns.clear_wakeup()

    turns = LoopOwner(once)
    end_s = time.monotonic() + 0.3
    waiting = [
        threading.Thread(target=turns.run_until, args=(lambda: False, end_s)) for _ in range(2)
    ]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join(60.0)
    turns.end()
    assert turned < 20  # not as often as the processor can
