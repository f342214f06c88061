"""Nodes that an event pauses or kills are not lost; all others are."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest

from testbed.errors import NodeLost
from testbed.process import environment
from testbed.runner import control_channel as module
from testbed.runner.control_channel import (
    MAX_LINE,
    PREPARING_S,
    SILENCE_S,
    ControlServer,
    JsonLines,
)
from testbed.transport.endpoint import GREETING_BYTES, GREETING_S

TOKEN = "secret"


class Clock:
    """The server's, which goes on only when it is told to: how busy the machine is changes nothing."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


@pytest.fixture
def server(clock: Clock) -> Iterator[ControlServer]:
    made = ControlServer("127.0.0.1", 0, TOKEN, ["worker-0", "noise-0"])
    yield made
    made.close()


def node(server: ControlServer, name: str, *, started: bool = True) -> JsonLines:
    lines = JsonLines(socket.create_connection(server._listener.getsockname()))
    lines.send("hello", node=name, token=TOKEN)
    got = server.receive(60.0)
    assert got is not None and got[0] == name and got[1]["type"] == "hello"
    if started:
        server.send(name, "start", t0_ns=0)
    return lines


def pass_time(server: ControlServer, clock: Clock, seconds: float) -> None:
    """Raises what the server makes of it."""
    clock.now_s += seconds
    assert server.receive(0.01) is None


def eventually(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def test_a_silent_node_is_lost(server: ControlServer, clock: Clock) -> None:
    lines = node(server, "worker-0")
    pass_time(server, clock, SILENCE_S - 0.1)
    with pytest.raises(NodeLost, match=r"no sign of life for 6\.1 s"):
        pass_time(server, clock, 0.2)
    lines.close()


def test_a_sign_of_life_is_heard(server: ControlServer, clock: Clock) -> None:
    lines = node(server, "worker-0")
    pass_time(server, clock, SILENCE_S - 0.1)
    lines.send("alive")
    eventually(lambda: server._last_heard_s["worker-0"] == clock.now_s)
    pass_time(server, clock, SILENCE_S - 0.1)
    lines.close()


def test_a_silent_node_is_lost_while_another_has_much_to_say(
    server: ControlServer, clock: Clock
) -> None:
    silent, talking = node(server, "worker-0"), node(server, "noise-0")
    clock.now_s += SILENCE_S + 0.1
    for _ in range(50):
        talking.send("event", event={"kind": "note", "step": 1})
    eventually(lambda: server._inbox.qsize() == 50)
    with pytest.raises(NodeLost, match=r"'worker-0'.*no sign of life"):
        server.receive(60.0)
    silent.close()
    talking.close()


def test_a_node_that_prepares_may_be_silent_for_longer(server: ControlServer, clock: Clock) -> None:
    lines = node(server, "worker-0", started=False)
    pass_time(server, clock, PREPARING_S - 0.1)
    with pytest.raises(NodeLost, match="no sign of life"):
        pass_time(server, clock, 0.2)
    lines.close()


def test_a_node_that_does_not_read_is_lost(
    server: ControlServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNREAD_S", 0.3)
    lines = node(server, "worker-0")
    lost: list[NodeLost] = []

    def send() -> None:
        try:
            server.send("worker-0", "job", text="x" * (32 << 20))
        except NodeLost as error:
            lost.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    for _ in range(100):
        clock.now_s += 0.4
        sender.join(0.1)
        if not sender.is_alive():
            break
    assert [error.reason for error in lost] == ["it has not read for 0.3 s"]
    with pytest.raises(NodeLost):
        server.send("worker-0", "end")
    lines.close()


NODE = """
from testbed.runner import node_process
node_process.UNREAD_S = 0.3
node_process.main(["--name", "x" * (32 << 20), "--control", "127.0.0.1:{port}"])
"""
"""A node's own process, with more to say than the kernel has room for."""


def test_a_node_ends_whose_session_does_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as session:
        program = NODE.format(port=session.getsockname()[1])
        node = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            env=environment(NARROWS_TOKEN=TOKEN),
            stderr=subprocess.PIPE,
            text=True,
        )
        connected, _ = session.accept()
        try:
            with connected:
                _, said = node.communicate(timeout=60.0)
            assert node.returncode == 1 and "it has not read for 0.3 s" in said
        finally:
            node.kill()
            node.wait()


def test_a_long_line_arrives_at_a_node_that_reads_late(server: ControlServer, clock: Clock) -> None:
    lines, text = node(server, "worker-0"), "x" * (12 << 20)
    lines.socket.settimeout(60.0)
    sender = threading.Thread(target=server.send, args=("worker-0", "job"), kwargs={"text": text})
    sender.start()
    got = [message["type"] for message in (next(iter(lines)), next(iter(lines)))]
    sender.join(60.0)
    assert got == ["start", "job"] and not sender.is_alive()
    lines.close()


def test_a_paused_node_is_excused_until_it_goes_on(server: ControlServer, clock: Clock) -> None:
    lines = node(server, "worker-0")
    server.pause_liveness("worker-0")
    pass_time(server, clock, 10 * SILENCE_S)
    server.resume_liveness("worker-0")
    pass_time(server, clock, SILENCE_S - 0.1)
    with pytest.raises(NodeLost, match="no sign of life"):
        pass_time(server, clock, 0.2)
    lines.close()


def test_a_dismissed_node_may_go_and_come_back(server: ControlServer, clock: Clock) -> None:
    first = node(server, "noise-0")
    server.expect_exit("noise-0")
    first.close()
    eventually(lambda: not any("_listen" in thread.name for thread in threading.enumerate()))
    pass_time(server, clock, 10 * SILENCE_S)
    assert server.connected() == []
    second = node(server, "noise-0")
    assert server.connected() == ["noise-0"]
    second.send("up")
    assert server.receive(60.0) == ("noise-0", {"type": "up"})
    second.close()
    with pytest.raises(NodeLost, match="its process ended"):
        server.receive(60.0)


def test_a_node_that_came_back_prepares_as_long_as_it_did_at_first(
    server: ControlServer, clock: Clock
) -> None:
    """Until it is told to start, once more."""
    first = node(server, "noise-0", started=True)
    server.pause_liveness("noise-0")
    server.expect_exit("noise-0")
    first.close()
    eventually(lambda: not any("_listen" in thread.name for thread in threading.enumerate()))
    second = node(server, "noise-0", started=False)
    pass_time(server, clock, PREPARING_S - 0.1)
    with pytest.raises(NodeLost, match="no sign of life"):
        pass_time(server, clock, 0.2)
    server.expect_exit("noise-0")
    second.close()


def test_room_for_messages_is_there_again_when_they_were_received(server: ControlServer) -> None:
    lines = node(server, "worker-0")
    for _ in range(3):
        lines.send("event", event={"kind": "note", "text": "x" * 1000})
    for _ in range(3):
        assert server.receive(60.0) is not None
    assert server._waiting_bytes == 0
    lines.close()


def test_a_dismissed_node_is_not_sent_away_for_what_it_still_says(server: ControlServer) -> None:
    first = node(server, "noise-0", started=False)
    server.expect_exit("noise-0")
    for _ in range(3):
        first.send("alive")
    first.send("up")
    assert server.receive(0.2) is None
    first.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):  # open, and silent
        first.socket.recv(1)
    first.close()


def test_a_posted_message_comes_as_the_nodes_own(server: ControlServer) -> None:
    server.post("worker-0", {"type": "error", "message": "x"})
    assert server.receive(1.0) == ("worker-0", {"type": "error", "message": "x"})


def stranger(server: ControlServer) -> socket.socket:
    made = socket.create_connection(server._listener.getsockname())
    made.settimeout(60.0)
    return made


@pytest.mark.parametrize(("bound", "most"), [("MOST_WAITING", 100), ("MOST_WAITING_BYTES", 10**6)])
def test_nodes_are_not_read_while_too_much_waits(
    server: ControlServer, clock: Clock, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(module, bound, most)
    lines = node(server, "worker-0")
    count, text = 2000, "x" * 10_000  # more than sockets take

    def say() -> None:
        for number in range(count):
            lines.send("event", event={"kind": "note", "step": number, "text": text})

    saying = threading.Thread(target=say)
    saying.start()
    saying.join(0.5)
    assert saying.is_alive() and server._inbox.qsize() <= 100
    clock.now_s += 2 * SILENCE_S
    until = time.monotonic() + 60.0
    while server._last_heard_s["worker-0"] < clock.now_s and time.monotonic() < until:
        time.sleep(0.01)
    got = [server.receive(60.0) for _ in range(count)]
    assert [message["event"]["step"] for _, message in filter(None, got)] == list(range(count))
    saying.join(60.0)
    assert not saying.is_alive()
    lines.close()


def test_a_stranger_that_says_nothing_is_sent_away(server: ControlServer, clock: Clock) -> None:
    with stranger(server) as silent:
        eventually(lambda: len(server._pending) == 1)
        clock.now_s += GREETING_S
        assert silent.recv(1) == b""
    node(server, "worker-0").close()
    assert server._nodes["worker-0"].most_bytes == MAX_LINE


def test_a_greeting_is_short(server: ControlServer) -> None:
    with stranger(server) as talker:
        talker.sendall(b'{"type": "hello", "node": "' + b"x" * GREETING_BYTES)
        with suppress(ConnectionResetError):
            assert talker.recv(1) == b""
    node(server, "worker-0").close()


def test_a_node_comes_from_its_own_address() -> None:
    """Who knows the token and a name is turned away all the same, and the node itself gets in."""
    names, addresses = ["worker-0", "noise-0"], {"worker-0": "127.0.0.2"}
    server = ControlServer("127.0.0.1", 0, TOKEN, names, addresses)
    try:
        with stranger(server) as posing:
            posing.sendall(
                json.dumps({"type": "hello", "node": "worker-0", "token": TOKEN}).encode() + b"\n"
            )
            assert posing.recv(1) == b""
        eventually(lambda: server.strangers == 1)
        assert server.connected() == []
        own = socket.create_connection(
            server._listener.getsockname(), source_address=("127.0.0.2", 0)
        )
        lines = JsonLines(own)
        lines.send("hello", node="worker-0", token=TOKEN)
        came = server.receive(60.0)
        assert came is not None and came[0] == "worker-0"
        node(server, "noise-0").close()  # wherever it is
        assert server.strangers == 1
        lines.close()
    finally:
        server.close()


def test_strangers_are_counted(server: ControlServer) -> None:
    for words in (b"", b"{}\n", b"[]\n", b'{"type": "hello", "node": "worker-0", "token": "x"}\n'):
        with stranger(server) as one:
            one.sendall(words)
            one.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert one.recv(1) == b""
    eventually(lambda: server.strangers == 4)
    node(server, "worker-0").close()
    assert server.strangers == 4


def test_a_flood_of_strangers_keeps_nobody_out(server: ControlServer) -> None:
    before = threading.active_count()
    flood = [stranger(server) for _ in range(300)]
    node(server, "worker-0").close()
    eventually(lambda: threading.active_count() - before <= 34)
    assert len(server._pending) <= 32
    for each in flood:
        each.close()


def test_who_cannot_be_let_in_ends_nothing(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread for the first, no such option on the second's socket: the third is heard."""
    failing = iter([RuntimeError("can't start new thread"), OSError(22, "Invalid argument")])

    def refused(*_: object, real: Callable[..., JsonLines] = JsonLines) -> JsonLines:
        if (error := next(failing, None)) is not None:
            raise error
        return real(*_)

    monkeypatch.setattr(module, "JsonLines", refused)
    for _ in range(2):
        with stranger(server) as turned_away, suppress(OSError):
            turned_away.recv(1)
    monkeypatch.undo()
    lines = JsonLines(socket.create_connection(server._listener.getsockname()))
    lines.send("hello", node="worker-0", token=TOKEN)
    eventually(lambda: server.connected() == ["worker-0"])
    lines.close()
