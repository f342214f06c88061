"""What comes over sockets that are nobody's, and what peers have no reason to send: the run goes on, or says whose it was."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from random import Random

import pytest
from endpoint_rig import KINDS, RUN, SOON_S, Either, endpoint, hello, listening, star

from testbed.errors import NodeLost
from testbed.node import Kind, Message
from testbed.transport.endpoint import GREETING_BYTES, PendingConnections
from testbed.transport.frame import MAX_BODY, FrameHeader
from testbed.transport.threaded_endpoint import ThreadedEndpoint

Pair = tuple[Either, Either, int]
GREETING_S, MOST_BYTES = 0.3, 1 << 20


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A peer that has greeted in its own time; from now on there is less."""
    with star(request.param, 1, most_bytes=MOST_BYTES) as ((server, one), port):
        server._pending._greeting_s = GREETING_S
        yield server, one, port


def frame(kind: Kind, body: bytes = b"", **changes: int) -> bytes:
    """A whole frame of worker-1, who is not connected, unless ``changes`` say otherwise."""
    fields = {"sender": 2, "run": RUN, "step": 0, "bucket": 0, "length": len(body), "sent_ns": 0}
    return FrameHeader(kind, **{**fields, **changes}).pack() + body


STRANGE = {
    "garbage": b"GET / HTTP/1.1\r\nHost: server\r\n\r\n" * 20,
    "a part of a header": b"NRWS\x01\x01",
    "a part of a greeting": frame(Kind.HELLO, length=100) + b"x" * 50,
    "a greeting of an old run": frame(Kind.HELLO, run=RUN - 1),
    "a second greeting": frame(Kind.HELLO, sender=1),
    "a greeting of nobody": frame(Kind.HELLO, sender=77),
    "a step's frame again": frame(Kind.GRADIENT, b"g" * 1000, sender=1, step=1),
    "an end": frame(Kind.BYE),
    "more than any frame has": frame(Kind.HELLO, length=MAX_BODY + 1),
    "more than a greeting has": frame(Kind.HELLO, length=GREETING_BYTES + 1),
    "another version": frame(Kind.HELLO).replace(b"NRWS\x01", b"NRWS\x02"),
}


@pytest.mark.parametrize("words", STRANGE.values(), ids=STRANGE)
def test_a_stranger_is_dropped_and_counted(pair: Pair, words: bytes) -> None:
    server, one, port = pair
    one.send([0], Message(Kind.GRADIENT, 1, 0, 1, b"g" * 1000))
    first = server.receive(SOON_S)
    say(port, words)
    eventually(lambda: server.rejected_connections == 1)
    assert bytes(first.body) == b"g" * 1000
    assert still_exchanges(server, one)


def test_random_words_are_strange(pair: Pair) -> None:
    server, one, port = pair
    random = Random(1)
    for _ in range(40):
        mutated = bytearray(frame(Kind.HELLO, random.randbytes(20), run=RUN ^ 1))
        for _ in range(random.randrange(8)):
            mutated[random.randrange(len(mutated))] = random.randrange(256)
        say(port, bytes(mutated[: random.randrange(1, len(mutated))]))
    eventually(lambda: server.rejected_connections == 40)
    assert still_exchanges(server, one)


@pytest.mark.parametrize("method", ["_greet", "_read"])
def test_who_there_is_no_thread_for_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    begin = threading.Thread.start
    failures = iter([RuntimeError("can't start new thread")])

    def start(thread: threading.Thread) -> None:
        if getattr(thread, "_target", None) == getattr(server, method):
            for failure in failures:
                raise failure
        begin(thread)

    with star(ThreadedEndpoint, 1) as ((server, one), port):
        monkeypatch.setattr(threading.Thread, "start", start)
        with socket.create_connection(("127.0.0.1", port)) as first:
            first.sendall(frame(Kind.HELLO))
            if method == "_greet":
                assert first.recv(1) == b""
            else:
                assert server.receive(SOON_S).kind is Kind.HELLO
                with pytest.raises(NodeLost, match="nothing can be read from it: can't start"):
                    server.receive(SOON_S)
        with socket.create_connection(("127.0.0.1", port)) as second:
            second.sendall(
                frame(Kind.HELLO) if method == "_greet" else frame(Kind.HELLO, sender=77)
            )
            if method == "_greet":
                assert server.receive(SOON_S).kind is Kind.HELLO
                second.sendall(frame(Kind.BYE))
                assert server.receive(SOON_S).kind is Kind.BYE
            else:
                eventually(lambda: server.rejected_connections == 1)
        assert still_exchanges(server, one)


@pytest.mark.parametrize("kind", KINDS)
def test_a_greeting_from_another_address_is_a_strangers(kind: type[Either]) -> None:
    """Whatever it knows of the run; the peer whose name it took gets in."""
    addresses = {1: "127.0.0.1", 2: "127.0.0.2"}
    with star(kind, 1, addresses=addresses) as ((server, one), port):
        say(port, frame(Kind.HELLO))
        eventually(lambda: server.rejected_connections == 1)
        assert 2 not in server._peers
        with socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)) as two:
            two.sendall(frame(Kind.HELLO))
            assert server.receive(SOON_S).sender == 2
            assert still_exchanges(server, one)
            two.sendall(frame(Kind.BYE))
            assert server.receive(SOON_S).kind is Kind.BYE
    assert server.rejected_connections == 1


def test_who_says_nothing_holds_nothing_up_and_is_dropped(pair: Pair) -> None:
    server, one, port = pair
    with socket.create_connection(("127.0.0.1", port)) as silent:
        assert still_exchanges(server, one)
        silent.settimeout(SOON_S)
        assert silent.recv(1) == b""
    eventually(lambda: server.rejected_connections == 1)


def test_who_says_it_too_slowly_is_dropped(pair: Pair) -> None:
    server, one, port = pair
    with socket.create_connection(("127.0.0.1", port)) as slow, suppress(OSError):
        for byte in frame(Kind.HELLO, sender=2):
            slow.sendall(bytes([byte]))
            time.sleep(GREETING_S / 10)
    eventually(lambda: server.rejected_connections == 1)
    assert still_exchanges(server, one)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flood_is_bounded_and_peers_get_in(kind: type[Either]) -> None:
    with star(kind, 1, greeting_s=60.0) as ((server, one), port), ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        two = endpoint(kind, 2)
        stack.callback(two.close)
        two.connect(0, "127.0.0.1", port, SOON_S)
        two.send([0], hello(2))
        assert server.receive(SOON_S).sender == 2
        eventually(lambda: server.rejected_connections == 201 - 32)  # the peer had to wait, too
        assert still_exchanges(server, one)
        assert still_exchanges(server, two)


def test_of_too_many_the_oldest_of_the_same_address_goes() -> None:
    pending: PendingConnections[str] = PendingConnections(greeting_s=1.0)
    assert pending.add("peer", "10.0.0.2", 0.0) is None
    out = [pending.add(f"stranger-{n}", "10.0.0.9", 0.1) for n in range(40)]
    assert out == [None] * 32 + [f"stranger-{n}" for n in range(8)]
    assert pending.expired(1.05) == ["peer"]
    everywhere = [pending.add(f"{n}", f"10.1.0.{n}", 2.0) for n in range(481)]
    assert everywhere == [None] * 480 + ["stranger-8"]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Message(Kind.GRADIENT, 1, 0, 1, bytes(MOST_BYTES + 1)), "over the limit of 1048576 B"),
        (Message(Kind.GRADIENT, 1, 0, 2, b""), "a frame of worker-1"),
    ],
    ids=["too long", "somebody else's"],
)
def test_a_peer_that_breaks_the_rules_is_lost_by_name(
    pair: Pair, message: Message, said: str
) -> None:
    server, one, _ = pair
    with suppress(NodeLost):
        one.send([0], message)
    with pytest.raises(NodeLost, match=f"'worker-0'.*{said}"):
        server.receive(SOON_S)


def test_a_peer_cannot_fill_the_memory_with_messages(pair: Pair) -> None:
    server, one, _ = pair
    with suppress(NodeLost):
        for step in range((1 << 14) + 10):
            one.send([0], Message(Kind.GRADIENT, step, 0, 1, b""))
    eventually(lambda: server._peers[1].delivered > 1 << 14)
    with pytest.raises(NodeLost, match=r"'worker-0'.*16384 messages of it wait"):
        for _ in range(1 << 15):
            server.receive(SOON_S)


@pytest.mark.parametrize("kind", KINDS)
def test_who_listens_is_closed_with_strangers_at_the_door(kind: type[Either]) -> None:
    server = endpoint(kind, 0)
    port = listening(server)
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.sendall(b"N")
        time.sleep(0.1)
        server.close()
        silent.settimeout(SOON_S)
        with suppress(ConnectionResetError):
            assert silent.recv(1) == b""


def say(port: int, words: bytes) -> None:
    """Connect, say it, and hang up."""
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.settimeout(SOON_S)
        with suppress(OSError):  # the server may have hung up by now, with a reset
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(100):
                pass


def still_exchanges(server: Either, worker: Either) -> bool:
    """Whether a round goes through."""
    worker.send([0], Message(Kind.GRADIENT, 9, 0, worker.number, b"still here"))
    came = server.receive(SOON_S)
    server.send([worker.number], Message(Kind.UPDATE, 9, 0, 0, came.body))
    return bytes(worker.receive(SOON_S).body) == b"still here"


def eventually(true: Callable[[], bool]) -> None:
    """Within seconds."""
    give_up = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)
