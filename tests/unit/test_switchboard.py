"""Nodes that an event pauses or kills are not lost; all others are."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from testbed.errors import NodeLost
from testbed.session import switchboard as module
from testbed.session.lines import Lines
from testbed.session.switchboard import Switchboard

TOKEN = "secret"


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[Switchboard]:
    monkeypatch.setattr(module, "SILENCE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Switchboard("127.0.0.1", port, TOKEN, ["worker-0", "noise-0"])
    yield made
    made.close()


def node(board: Switchboard, name: str, *, started: bool = True) -> Lines:
    lines = Lines(socket.create_connection(board._listener.getsockname()))
    lines.send("hello", node=name, token=TOKEN)
    got = board.receive(5.0)
    assert got is not None and got[0] == name and got[1]["type"] == "hello"
    if started:
        board.send(name, "start", t0_ns=0)
    return lines


def silence(board: Switchboard) -> None:
    """Longer than a node may be silent; raises what the board makes of it."""
    give_up = time.monotonic() + 2.0
    while time.monotonic() < give_up:
        board.receive(0.05)


def test_a_silent_node_is_lost(board: Switchboard) -> None:
    lines = node(board, "worker-0")
    with pytest.raises(NodeLost, match="no sign of life"):
        silence(board)
    lines.close()


def test_a_silent_node_is_lost_while_another_has_much_to_say(
    board: Switchboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, talking = node(board, "worker-0"), node(board, "noise-0")
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.05)
    time.sleep(1.3)
    for _ in range(50):
        talking.send("event", event={})
    time.sleep(0.1)
    with pytest.raises(NodeLost, match=r"'worker-0'.*no sign of life"):
        board.receive(5.0)
    silent.close()
    talking.close()


def test_a_node_that_prepares_may_be_silent_for_longer(
    board: Switchboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = node(board, "worker-0", started=False)
    silence(board)
    monkeypatch.setattr(module, "PREPARING_S", 1.5)
    with pytest.raises(NodeLost, match="no sign of life"):
        silence(board)
    lines.close()


def test_a_paused_node_is_excused_until_it_goes_on(board: Switchboard) -> None:
    lines = node(board, "worker-0")
    board.excuse("worker-0")
    silence(board)
    board.expect("worker-0")
    assert board.receive(0.05) is None
    with pytest.raises(NodeLost, match="no sign of life"):
        silence(board)
    lines.close()


def test_a_dismissed_node_may_go_and_come_back(board: Switchboard) -> None:
    first = node(board, "noise-0")
    board.dismiss("noise-0")
    first.close()
    silence(board)
    assert board.connected() == []
    second = node(board, "noise-0")
    assert board.connected() == ["noise-0"]
    second.send("up")
    assert board.receive(5.0) == ("noise-0", {"type": "up"})
    second.close()
    with pytest.raises(NodeLost, match="its process ended"):
        silence(board)


def test_a_posted_message_comes_as_the_nodes_own(board: Switchboard) -> None:
    board.post("worker-0", {"type": "error", "message": "x"})
    assert board.receive(1.0) == ("worker-0", {"type": "error", "message": "x"})
