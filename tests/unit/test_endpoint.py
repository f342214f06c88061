"""Framed TCP over loopback: real sockets, three peers."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from testbed.errors import NodeLost
from testbed.exchange.endpoint import TcpEndpoint
from testbed.exchange.frame import HEADER_BYTES, Header
from testbed.node import Kind, Message
from testbed.scenario.shape import SEGMENT_HEADER_BYTES

NAMES = {0: "server", 1: "worker-0", 2: "worker-1"}
RUN = 0xFEED
Trio = tuple[TcpEndpoint, TcpEndpoint, TcpEndpoint, int]


def endpoint(number: int) -> TcpEndpoint:
    return TcpEndpoint(number, RUN, names=NAMES, clock=lambda ns: ns / 1e9, silence_s=2.0)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


@pytest.fixture
def trio() -> Iterator[Trio]:
    server, one, two, port = endpoint(0), endpoint(1), endpoint(2), free_port()
    server.listen("127.0.0.1", port)
    for peer in (one, two):
        peer.connect(0, "127.0.0.1", port, 5.0)
        peer.send([0], Message(Kind.HELLO, 0, 0, peer.number, b""))
    greeted = {server.receive(5.0).sender for _ in range(2)}
    assert greeted == {1, 2}
    yield server, one, two, port
    for peer in (server, one, two):
        peer.close()


def test_a_gradient_arrives_whole_with_its_times(trio: Trio) -> None:
    server, one, _, _ = trio
    body = bytes(range(256)) * 20_000
    sent = one.send([0], Message(Kind.GRADIENT, 7, 3, 1, body))
    got = server.receive(5.0)
    assert sent == HEADER_BYTES + len(body)
    assert (got.kind, got.step, got.bucket, got.sender) == (Kind.GRADIENT, 7, 3, 1)
    assert bytes(got.body) == body
    assert got.sent_s <= got.first_s <= got.last_s <= time.monotonic()
    assert got.sent_s < got.arrived_s <= got.last_s


def test_one_send_reaches_every_destination_and_counts_each(trio: Trio) -> None:
    server, one, two, _ = trio
    update = Message(Kind.UPDATE, 1, 0, 0, b"x" * 1000)
    assert server.send([1, 2], update) == 2 * (HEADER_BYTES + 1000)
    assert bytes(one.receive(5.0).body) == bytes(two.receive(5.0).body) == b"x" * 1000


def test_empty_bodies_travel(trio: Trio) -> None:
    server, one, _, _ = trio
    one.send([0], Message(Kind.GRADIENT, 0, 0, 1, b""))
    assert len(server.receive(5.0).body) == 0


def test_buffers_of_neighbouring_steps_are_apart(trio: Trio) -> None:
    server, one, _, _ = trio
    for step in range(2):
        one.send([0], Message(Kind.GRADIENT, step, 0, 1, bytes([step]) * 100))
    first, second = server.receive(5.0), server.receive(5.0)
    assert bytes(first.body) == b"\x00" * 100
    assert bytes(second.body) == b"\x01" * 100


def test_the_kernels_count_is_the_frames(trio: Trio) -> None:
    server, one, _, _ = trio
    before = one.counters()[0]
    for step in range(5):
        one.send([0], Message(Kind.GRADIENT, step, 0, 1, b"y" * 5000))
        server.receive(5.0)
    after = one.counters()[0]
    assert after.least_rtt_us is not None
    assert before.least_rtt_us is not None
    assert 0 <= after.least_rtt_us <= before.least_rtt_us < 1_000_000
    assert after.bytes_sent - before.bytes_sent == 5 * (5000 + HEADER_BYTES)
    segments = after.segments_out - before.segments_out
    assert after.wire_bytes - before.wire_bytes == 5 * (5000 + HEADER_BYTES) + (
        SEGMENT_HEADER_BYTES * segments
    )


def test_a_closed_peer_is_lost_by_name(trio: Trio) -> None:
    server, one, _, _ = trio
    one.close()
    with pytest.raises(NodeLost, match="worker-0"):
        server.receive(5.0)


def test_a_goodbye_is_no_loss(trio: Trio) -> None:
    server, one, _, _ = trio
    one.send([0], Message(Kind.BYE, 0, 0, 1, b""))
    one.close()
    assert server.receive(5.0).kind is Kind.BYE
    with pytest.raises(NodeLost, match="nothing was received"):
        server.receive(0.05)


def test_a_stranger_is_dropped_and_counted(trio: Trio) -> None:
    server, one, _, port = trio
    wrong_run = Header(Kind.HELLO, 1, RUN + 1, 0, 0, 0, 0).pack()
    for words in (b"GET / HTTP/1.1\r\n" + b"\r\n" * 40, wrong_run, b"NR"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(words)
            with suppress(OSError):  # the server may have hung up by now, with a reset
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(100):
                    pass
    assert server.strangers == 3
    one.send([0], Message(Kind.GRADIENT, 1, 0, 1, b"still here"))
    assert bytes(server.receive(5.0).body) == b"still here"


def test_nobody_listens() -> None:
    with pytest.raises(NodeLost, match=r"'server'.*cannot connect"):
        endpoint(1).connect(0, "127.0.0.1", free_port(), 0.1)
