"""The session's own parts: the control network, causes of failure, seeds."""

import socket
from collections.abc import Iterator

import pytest

from testbed.errors import ExperimentError, InputError, NodeLost
from testbed.session.experiment import parse_seeds
from testbed.session.failure import Failures
from testbed.session.judgement import differing_replicas
from testbed.session.lines import Lines
from testbed.session.switchboard import Switchboard


@pytest.fixture
def board() -> Iterator[tuple[Switchboard, int]]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = int(held.getsockname()[1])
    switchboard = Switchboard("127.0.0.1", port, "secret")
    yield switchboard, port
    switchboard.close()


def call(port: int, token: str = "secret", name: str = "worker-0") -> Lines:
    lines = Lines(socket.create_connection(("127.0.0.1", port)))
    lines.send("hello", node=name, token=token)
    return lines


def test_a_node_is_heard_and_answered(board: tuple[Switchboard, int]) -> None:
    switchboard, port = board
    lines = call(port)
    lines.send("event", event={"kind": "step", "step": 3})
    received = [switchboard.receive(5.0), switchboard.receive(5.0)]
    assert [item and item[1]["type"] for item in received] == ["hello", "event"]
    assert switchboard.connected() == ["worker-0"]
    switchboard.send("worker-0", "start", t0_ns=17)
    assert next(iter(lines)) == {"type": "start", "t0_ns": 17}
    lines.close()


def test_a_closed_connection_is_the_loss_of_that_node(board: tuple[Switchboard, int]) -> None:
    switchboard, port = board
    lines = call(port)
    switchboard.receive(5.0)
    lines.close()
    with pytest.raises(NodeLost, match="'worker-0'"):
        switchboard.receive(5.0)


def test_strangers_are_shown_the_door(board: tuple[Switchboard, int]) -> None:
    switchboard, port = board
    for lines in (call(port, token="guess"), Lines(socket.create_connection(("127.0.0.1", port)))):
        if not lines.socket.getpeername():
            raise AssertionError
        lines.socket.sendall(b"garbage\n")
        lines.socket.settimeout(5.0)
        assert list(lines) == []
        lines.close()
    assert switchboard.connected() == []


def test_the_cause_outranks_its_consequences() -> None:
    hearsay = Failures.reported(
        "worker-1", {"message": "peer gone", "error": "NodeLost", "node": "server", "step": 4}
    )
    own = Failures.reported("server", {"message": "bad gradient", "error": "GradientError"})
    dead = NodeLost("worker-0", 4, "killed by signal 9")
    failures = Failures(hearsay)
    assert failures.cause() is hearsay
    failures.add(own)
    assert failures.cause() is own and isinstance(own, ExperimentError)
    failures.add(dead, certain=True)
    assert failures.cause() is dead


@pytest.mark.parametrize(
    ("text", "seeds"), [(None, []), ("3", [3]), ("1-3", [1, 2, 3]), ("1,4-5", [1, 4, 5])]
)
def test_seeds(text: str | None, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,1", "1..3"])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="--seed"):
        parse_seeds(text)


def test_replicas_that_differ_are_named() -> None:
    same = [{"step": 11, "node": f"worker-{n}", "parameters": "aa"} for n in range(2)]
    assert differing_replicas([*same, {"step": 11, "node": "server", "parameters": "aa"}]) == []
    (sentence,) = differing_replicas([*same, {"step": 11, "node": "server", "parameters": "bb"}])
    assert sentence == "after step 11 the replicas differed: worker-0, worker-1 against server"
