"""Hostile lines on the control network: read as messages of a known form, or refused with a WireError."""

from __future__ import annotations

import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from fuzz_rig import TIMEOUT_S, changed, fuzzed, hostile, no_thread_fails
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import NodeLost, WireError
from testbed.runner.control_channel import MAX_LINE, ControlServer, JsonLines
from testbed.runner.signals import Failures
from testbed.transport.endpoint import GREETING_BYTES

pytestmark = pytest.mark.timeout(TIMEOUT_S)
TOKEN, NODE = "secret", "worker-0"
SOON_S = 20.0
HELLO = {"type": "hello", "node": NODE, "token": TOKEN, "pid": 1}
FROM_NODES: list[Any] = [
    HELLO,
    {"type": "up"},
    {"type": "ready"},
    {"type": "alive"},
    {"type": "event", "event": {"v": 1, "kind": "step", "node": NODE, "step": 3, "loss": 0.5}},
    {"type": "event", "event": {"kind": "lost", "lost": "worker-1", "step": 3, "reason": "x"}},
    {"type": "burst", "record": {"flow": "bulk", "from_s": 0.0, "to_s": 1.0, "bytes": 5}},
    {"type": "done", "summary": {"role": "worker"}, "counters": {"server": {}}},
    {"type": "ended", "part": "sources"},
    {"type": "error", "message": "x", "error": "NodeLost", "exit_code": 1, "node": "server", "step": 2, "phase": "send"},
    {"type": "lost", "reason": "it says so itself"},
]  # fmt: skip
TO_NODES: list[Any] = [
    {"type": "start", "t0_ns": 5},
    {"type": "end", "part": "sources", "tests": [1, 2]},
    {"type": "link", "sample": {"link": NODE, "direction": "up", "from_s": 0.0, "to_s": 0.1}},
    {"type": "job", "job": {"run": 1}, "role": "worker", "peers": {"0": "server"}, "traffic": {}},
    {"type": "keep"},
]
spoken = st.lists(hostile(FROM_NODES), max_size=4).map(b"\n".join)
heard = st.lists(hostile(TO_NODES), max_size=4).map(b"\n".join)


@pytest.fixture(scope="module")
def board() -> Iterator[ControlServer]:
    made = ControlServer("127.0.0.1", 0, TOKEN, [NODE])
    with no_thread_fails():
        yield made
        enters(made).close()
        made.close()


def connect(board: ControlServer) -> socket.socket:
    made = socket.create_connection(board._listener.getsockname(), timeout=SOON_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def enters(board: ControlServer) -> socket.socket:
    """A node that is let in as ever."""
    made = connect(board)
    made.sendall(json.dumps(HELLO).encode() + b"\n")
    came = board.receive(SOON_S)
    assert came == (NODE, HELLO)
    return made


def say(connected: socket.socket, data: bytes) -> None:
    """Say it and hang up; the board may have done so before."""
    with suppress(OSError):
        connected.sendall(data)
        connected.shutdown(socket.SHUT_WR)


@fuzzed
@given(heard | spoken, st.booleans())
def test_lines_are_messages_or_refused(data: bytes, ended: bool) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with closing(theirs):
        theirs.sendall(data + b"\n" * ended)
        theirs.shutdown(socket.SHUT_WR)
        ours.settimeout(SOON_S)
        lines = _over(ours)
        try:
            for message in lines:
                assert isinstance(message["type"], str)
        except WireError as error:
            assert len(str(error)) < 1000
        finally:
            lines.close()


def _over(connected: socket.socket, most_bytes: int = MAX_LINE) -> JsonLines:
    """A Unix socket has no ``TCP_NODELAY``."""

    class Plain(socket.socket):
        def setsockopt(self, *_: Any) -> None:
            pass

    return JsonLines(Plain(fileno=connected.detach()), most_bytes)


@fuzzed
@given(spoken)
def test_strangers_are_sent_away(board: ControlServer, data: bytes) -> None:
    """Whatever is said first: only a whole greeting lets somebody in, and everybody else sees the end soon."""
    with closing(connect(board)) as stranger:
        say(stranger, data)
        with suppress(ConnectionResetError):
            while stranger.recv(100):
                pass
    if board.connected():
        came = board.receive(SOON_S)
        assert came is not None and came[0] == NODE and came[1]["token"] == TOKEN
    _forget(board)


@fuzzed
@given(spoken | st.sampled_from([b"\n".join(json.dumps(m).encode() for m in FROM_NODES)]).flatmap(changed))  # fmt: skip
def test_nodes_that_say_anything_are_heard_or_lost(board: ControlServer, data: bytes) -> None:
    """After the greeting: what comes has what the session reads of it, and then the node is lost by name."""
    try:
        with closing(enters(board)) as node:
            say(node, data + b"\n")
            with pytest.raises(NodeLost) as lost:
                while (came := board.receive(SOON_S)) is not None:
                    assert came[0] == NODE
                    read(came[1])
        assert lost.value.node == NODE and len(str(lost.value)) < 1000
    finally:
        _forget(board)


def read(message: dict[str, Any]) -> None:
    """As the session reads it."""
    match message["type"]:
        case "event":
            assert isinstance(message["event"]["kind"], str)
            assert type(message["event"].get("step", 0)) in (int, type(None))
            if message["event"]["kind"] == "lost":
                NodeLost(message["event"]["lost"], message["event"].get("step"), message["event"]["reason"])  # fmt: skip
        case "burst":
            assert isinstance(message["record"], dict)
        case "done":
            assert isinstance(message["summary"], dict)
        case "ended":
            assert isinstance(message["part"], str)
        case "error":
            assert NODE in str(Failures.reported(NODE, message))
        case other:
            assert other in {"hello", "up", "ready"}


def _forget(board: ControlServer) -> None:
    board.expect_exit(NODE)
    give_up = time.monotonic() + SOON_S
    while any("_listen" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < give_up
        time.sleep(0.001)
    with suppress(NodeLost):
        while board.receive(0.0) is not None:
            pass
    assert board._inbox.empty()


@pytest.mark.parametrize(("most_bytes", "greeted"), [(GREETING_BYTES, False), (MAX_LINE, True)])
@pytest.mark.parametrize("endless", [b"x", b'{"type": "event", "event": "', b" "], ids=repr)
def test_a_line_without_end_is_cut_off(
    board: ControlServer, most_bytes: int, greeted: bool, endless: bytes
) -> None:
    """At the bound, with little more memory than that."""
    with closing(enters(board) if greeted else connect(board)) as node:
        tracemalloc.start()
        try:
            sent, piece = 0, (endless[-1:] * (1 << 16))
            node.sendall(endless)
            with suppress(OSError):
                while sent < 8 * MAX_LINE:
                    node.sendall(piece)
                    sent += len(piece)
            assert sent < most_bytes + (16 << 20), "more was taken than any buffer holds"
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert most < 4 * most_bytes + (1 << 20)
    if greeted:
        with pytest.raises(NodeLost, match=f"a line of more than {MAX_LINE} bytes"):
            board.receive(SOON_S)
    _forget(board)
