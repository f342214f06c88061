"""Framed TCP over loopback: real sockets, three peers, threads and one loop."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from endpoint_rig import KINDS, NAMES, RUN, SOON_S, Either, endpoint, star
from loopback import refusing

from testbed.errors import NodeLost
from testbed.exchange.all_gather import AllGatherExchange
from testbed.exchange.base import Membership
from testbed.fabric.host_node import HostClock, HostNode
from testbed.node import Kind, Message
from testbed.scenario.link_state import SEGMENT_HEADER_BYTES
from testbed.scenario.validate import MOST_SILENCE_S
from testbed.transport.connection import SocketCounters, _tune
from testbed.transport.endpoint import connect_patiently
from testbed.transport.epoll_endpoint import EpollEndpoint
from testbed.transport.frame import HEADER_BYTES, FrameHeader
from testbed.transport.threaded_endpoint import ThreadedEndpoint

Trio = tuple[Either, Either, Either, int]


@pytest.fixture(params=KINDS)
def trio(request: pytest.FixtureRequest) -> Iterator[Trio]:
    with star(request.param, 2) as ((server, one, two), port):
        yield server, one, two, port


def test_a_gradient_arrives_whole_with_its_times(trio: Trio) -> None:
    server, one, _, _ = trio
    body = bytes(range(256)) * 20_000
    sent = one.send([0], Message(Kind.GRADIENT, 7, 3, 1, body))
    got = server.receive(SOON_S)
    assert sent == HEADER_BYTES + len(body)
    assert (got.kind, got.step, got.bucket, got.sender) == (Kind.GRADIENT, 7, 3, 1)
    assert bytes(got.body) == body
    assert got.sent_s <= got.first_s <= got.last_s <= time.monotonic()
    assert got.sent_s < got.arrived_s <= got.last_s


def test_one_send_reaches_every_destination_and_counts_each(trio: Trio) -> None:
    server, one, two, _ = trio
    update = Message(Kind.UPDATE, 1, 0, 0, b"x" * 1000)
    assert server.send([1, 2], update) == 2 * (HEADER_BYTES + 1000)
    assert bytes(one.receive(SOON_S).body) == bytes(two.receive(SOON_S).body) == b"x" * 1000


def test_empty_bodies_travel(trio: Trio) -> None:
    server, one, _, _ = trio
    one.send([0], Message(Kind.GRADIENT, 0, 0, 1, b""))
    assert len(server.receive(SOON_S).body) == 0


def test_buffers_of_neighbouring_steps_are_apart(trio: Trio) -> None:
    server, one, _, _ = trio
    for step in range(2):
        one.send([0], Message(Kind.GRADIENT, step, 0, 1, bytes([step]) * 100))
    first, second = server.receive(SOON_S), server.receive(SOON_S)
    assert bytes(first.body) == b"\x00" * 100
    assert bytes(second.body) == b"\x01" * 100


def test_a_peer_that_is_a_step_ahead_changes_nothing_that_still_waits(trio: Trio) -> None:
    """Its gradient of the next step has come before another's of this one."""
    own, one, two, _ = trio
    node = HostNode("server", 1, own, HostClock(), lambda _: None)
    exchange = AllGatherExchange(node, Membership(0, [], [0, 1, 2], NAMES, SOON_S))

    def send(peer: Either, step: int, bucket: int) -> None:
        body = bytes([10 * peer.number + step]) * 100
        peer.send([0], Message(Kind.GRADIENT, step, bucket, peer.number, body))

    def gathered(step: int, bucket: int) -> list[bytes]:
        return [bytes(message.body) for message in exchange.gather(step, bucket)]

    for step, bucket in ((1, 0), (2, 0), (1, 1)):
        send(one, step, bucket)
    send(two, 1, 1)
    assert gathered(1, 1) == [b"\x0b" * 100, b"\x15" * 100]  # all that was sent has come
    send(two, 1, 0)
    assert gathered(1, 0) == [b"\x0b" * 100, b"\x15" * 100]
    send(two, 2, 0)
    assert gathered(2, 0) == [b"\x0c" * 100, b"\x16" * 100]
    node.close()


def test_frames_of_all_lengths_follow_each_other(trio: Trio) -> None:
    server, one, _, _ = trio
    lengths = [0, 1000, 10, 70_000, 70_000, 1, 0, 65_536, 3, 300_000, 5, 5]
    for step, length in enumerate(lengths):
        one.send([0], Message(Kind.GRADIENT, step, step, 1, bytes([step]) * length))
    for step, length in enumerate(lengths):
        got = server.receive(SOON_S)
        assert (got.step, bytes(got.body)) == (step, bytes([step]) * length)
        assert got.sent_s < got.arrived_s <= got.last_s


def test_both_may_send_at_once_more_than_the_kernel_holds(trio: Trio) -> None:
    server, one, two, _ = trio
    size = 32 << 20
    bodies = {peer.number: bytes([peer.number + 1]) * size for peer in (server, one, two)}

    def work(peer: Either, others: list[int]) -> None:
        peer.send(others, Message(Kind.UPDATE, 1, 0, peer.number, bodies[peer.number]))

    pairs = ((server, [1, 2]), (one, [0]), (two, [0]))
    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert not any(thread.is_alive() for thread in threads)
    for peer, count in ((server, 2), (one, 1), (two, 1)):
        for got in [peer.receive(SOON_S) for _ in range(count)]:
            assert bytes(got.body) == bodies[got.sender]


def test_two_threads_of_a_node_may_send_while_a_third_receives(trio: Trio) -> None:
    server, one, _, _ = trio
    got = list[Message]()

    def receive() -> None:
        got.extend(one.receive(SOON_S) for _ in range(20))

    def send(bucket: int) -> None:
        for step in range(20):
            body = bytes([bucket]) * (1 << 20)
            one.send([0], Message(Kind.GRADIENT, step, bucket, 1, body))

    activities = [threading.Thread(target=receive, daemon=True)]
    activities += [threading.Thread(target=send, args=(n,), daemon=True) for n in range(2)]
    for activity in activities:
        activity.start()
    for step in range(40):
        message = server.receive(SOON_S)
        assert set(bytes(message.body)) == {message.bucket}
        if step % 2:
            server.send([1, 2], Message(Kind.UPDATE, step, 0, 0, b"u" * 1000))
    for activity in activities:
        activity.join(SOON_S)
    assert [message.step for message in got] == list(range(1, 40, 2))


def test_what_comes_while_the_role_computes_is_read(trio: Trio) -> None:
    server, one, _, _ = trio
    size = 16 << 20
    sender = threading.Thread(
        target=one.send, args=([0], Message(Kind.GRADIENT, 1, 0, 1, b"z" * size)), daemon=True
    )
    sender.start()
    sender.join(SOON_S)
    assert not sender.is_alive()  # the kernel alone would not hold so much
    assert len(server.receive(SOON_S).body) == size


def test_the_kernels_count_is_the_frames(trio: Trio) -> None:
    server, one, _, _ = trio
    before = one.counters()[0]
    for step in range(5):
        one.send([0], Message(Kind.GRADIENT, step, 0, 1, b"y" * 5000))
        server.receive(SOON_S)
    after = one.counters()[0]
    assert after.least_rtt_us is not None
    assert before.least_rtt_us is not None
    assert 0 <= after.least_rtt_us <= before.least_rtt_us < 1_000_000
    assert after.bytes_sent - before.bytes_sent == 5 * (5000 + HEADER_BYTES)
    segments = after.segments_out - before.segments_out
    assert after.wire_bytes - before.wire_bytes == 5 * (5000 + HEADER_BYTES) + (
        SEGMENT_HEADER_BYTES * segments
    )

    assert 0 < after.segment_bytes <= 65_535 - 40


@pytest.mark.parametrize("silence_s", [0.3, 10.0, 127.0, 128.0, 127.5, 5_000.0, MOST_SILENCE_S])
def test_a_silent_peer_is_waited_for_as_long_as_asked(silence_s: float) -> None:
    """The kernel counts 127 probes at most, 32,767 s apart at most."""
    with socket.socket() as connected:
        _tune(connected, silence_s)
        idle, between, probes, ends_ms = (
            connected.getsockopt(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_KEEPIDLE,
                socket.TCP_KEEPINTVL,
                socket.TCP_KEEPCNT,
                socket.TCP_USER_TIMEOUT,
            )
        )
    assert 0.98 * silence_s <= idle + between * probes <= 1.02 * silence_s + 2
    assert silence_s <= ends_ms / 1e3 <= 1.02 * silence_s + 1


@pytest.mark.parametrize(
    ("connecting", "later", "least"),
    [(120, 500, 120), (500, 120, 120), (120, None, 120), (None, 80, 80), (None, None, None)],
)
def test_the_least_round_trip_of_connecting_is_kept(
    connecting: int | None, later: int | None, least: int | None
) -> None:
    """The kernel forgets it after minutes; links are idle only at the beginning."""
    endpoint: Any = object.__new__(ThreadedEndpoint)
    endpoint._least_rtt_us = {} if connecting is None else {1: connecting}
    counted = SocketCounters(1, 2, 3, 4, 5, 6, later)
    assert endpoint._with_least(1, counted) == replace(counted, least_rtt_us=least)


def test_a_closed_peer_is_lost_by_name(trio: Trio) -> None:
    server, one, _, _ = trio
    one.close()
    with pytest.raises(NodeLost, match="worker-0"):
        server.receive(SOON_S)


def test_who_sends_to_a_closed_peer_hears_of_it_and_reaches_the_others(trio: Trio) -> None:
    server, one, two, _ = trio
    one.close()
    with pytest.raises(NodeLost, match="worker-0"):
        server.receive(SOON_S)
    sent = 0
    with pytest.raises(NodeLost, match=r"worker-0.*cannot send"):
        while sent < 1000:  # the kernel takes a few, until the peer's has answered the first
            server.send([1, 2], Message(Kind.UPDATE, sent, 0, 0, b"1234"))
            sent += 1
    assert [two.receive(SOON_S).step for _ in range(sent + 1)] == [*range(sent + 1)]


def test_a_goodbye_is_no_loss(trio: Trio) -> None:
    server, one, _, _ = trio
    one.send([0], Message(Kind.BYE, 0, 0, 1, b""))
    one.close()
    assert server.receive(SOON_S).kind is Kind.BYE
    with pytest.raises(NodeLost, match="nothing was received"):
        server.receive(0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_who_receives_hears_that_the_endpoint_is_closed_beside_it(kind: type[Either]) -> None:
    with star(kind, 1) as ((_, worker), _port), ThreadPoolExecutor(1) as beside:
        receiving = beside.submit(worker.receive, SOON_S, [0])
        while isinstance(worker, EpollEndpoint) and not worker._owner._busy:
            time.sleep(0.01)
        worker.close()
        with pytest.raises(NodeLost, match=r"'worker-0'.*its endpoint was closed"):
            receiving.result()


def test_who_goes_on_after_a_goodbye_is_lost_when_it_ends(trio: Trio) -> None:
    server, one, _, _ = trio
    one.send([0], Message(Kind.BYE, 0, 0, 1, b""))
    one.send([0], Message(Kind.GRADIENT, 1, 0, 1, b"1234"))
    one.close()
    assert [server.receive(SOON_S).kind for _ in range(2)] == [Kind.BYE, Kind.GRADIENT]
    with pytest.raises(NodeLost, match=r"worker-0.*closed"):
        server.receive(SOON_S)


def test_a_stranger_is_dropped_and_counted(trio: Trio) -> None:
    server, one, _, port = trio
    wrong_run = FrameHeader(Kind.HELLO, 1, RUN + 1, 0, 0, 0, 0).pack()
    for words in (b"GET / HTTP/1.1\r\n" + b"\r\n" * 40, wrong_run, b"NR"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(words)
            with suppress(OSError):  # the server may have hung up by now, with a reset
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(100):
                    pass
    assert server.rejected_connections == 3
    one.send([0], Message(Kind.GRADIENT, 1, 0, 1, b"still here"))
    assert bytes(server.receive(SOON_S).body) == b"still here"


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_listens(kind: type[Either]) -> None:
    with refusing() as port, pytest.raises(NodeLost, match=r"'server'.*cannot connect"):
        endpoint(kind, 1).connect(0, "127.0.0.1", port, 0.1)


def test_few_attempts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cross a link that is held against what sockets have sent."""
    attempts, connect = [], socket.create_connection

    def counted(address: tuple[str, int], timeout_s: float) -> socket.socket:
        attempts.append(time.monotonic())
        return connect(address, timeout_s)

    monkeypatch.setattr(socket, "create_connection", counted)
    with refusing() as port, pytest.raises(ConnectionRefusedError):
        connect_patiently(("127.0.0.1", port), 1.5, 1.5)
    assert 2 <= len(attempts) <= 12
    assert attempts[-1] - attempts[0] >= 1.4
