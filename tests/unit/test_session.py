"""The session's own parts: the control network, causes of failure, seeds."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.errors import ExperimentError, InputError, NodeLost
from testbed.runner.control_channel import ControlServer, JsonLines
from testbed.runner.experiment import parse_seeds
from testbed.runner.judge import faults
from testbed.runner.signals import Failures


@pytest.fixture
def control() -> Iterator[tuple[ControlServer, int]]:
    server = ControlServer("127.0.0.1", 0, "secret", ["worker-0"])
    yield server, int(server._listener.getsockname()[1])
    server.close()


def call(port: int, token: str = "secret", name: str = "worker-0") -> JsonLines:
    lines = JsonLines(socket.create_connection(("127.0.0.1", port)))
    lines.send("hello", node=name, token=token)
    return lines


def test_a_node_is_heard_and_answered(control: tuple[ControlServer, int]) -> None:
    server, port = control
    lines = call(port)
    lines.send("event", event={"kind": "step", "step": 3})
    received = [server.receive(5.0), server.receive(5.0)]
    assert [item and item[1]["type"] for item in received] == ["hello", "event"]
    assert server.connected() == ["worker-0"]
    server.send("worker-0", "start", t0_ns=17)
    assert next(iter(lines)) == {"type": "start", "t0_ns": 17}
    lines.close()


def test_a_closed_connection_is_the_loss_of_that_node(control: tuple[ControlServer, int]) -> None:
    server, port = control
    lines = call(port)
    server.receive(5.0)
    lines.close()
    with pytest.raises(NodeLost, match="'worker-0'"):
        server.receive(5.0)


def test_strangers_are_shown_the_door(control: tuple[ControlServer, int]) -> None:
    server, port = control
    deep = b"[" * 200_000 + b"\n"
    for lines in (
        call(port, token="gu\u00e9ss"),
        call(port, name="intruder"),
        JsonLines(socket.create_connection(("127.0.0.1", port))),
    ):
        if not lines.socket.getpeername():
            raise AssertionError
        lines.socket.sendall(deep)
        lines.socket.settimeout(5.0)
        assert list(lines) == []
        lines.close()
    assert server.connected() == []


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


def test_who_tells_of_a_loss_was_not_lost_before_it() -> None:
    """A server that gives a silent worker up closes its connections: the others are quicker to say so than it is."""
    gone = {"error": "NodeLost", "step": 7, "phase": "receiving"}
    late = Failures.reported("worker-1", {"message": "closed", "node": "server", **gone})
    first = Failures.reported("server", {"message": "silent", "node": "worker-0", **gone})
    failures = Failures(late, "worker-1")
    assert failures.cause() is late
    failures.add(first, reporter="server")
    assert failures.cause() is first


@pytest.mark.parametrize(
    ("text", "seeds"), [(None, []), ("3", [3]), ("1-3", [1, 2, 3]), ("1,4-5", [1, 4, 5])]
)
def test_seeds(text: str | None, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,1", "1..3"])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="--seed"):
        parse_seeds(text)


def done(role: str, parameters: str = "aa", sent: int = 500, segment: int = 1448) -> dict[str, Any]:
    counters = {
        "bytes_sent": 520, "bytes_retransmitted": 20, "bytes_received": 300, "segment_bytes": segment,
    }  # fmt: skip
    summary = {
        "role": role, "steps": 2, "parameters": parameters, "bytes_sent": sent, "bytes_received": 300,
    }  # fmt: skip
    return {"summary": summary, "counters": {"peer": counters}}


def test_the_end_of_a_stream_is_counted_as_a_byte_by_the_kernel() -> None:
    message = done("server")
    message["summary"]["bytes_received"] = 299
    assert faults({"server": message}, [], []) == []
    message["summary"]["bytes_received"] = 298
    assert len(faults({"server": message}, [], [])) == 1


def test_what_endpoints_say_to_each_other_is_no_frame_of_a_role() -> None:
    message = {**done("server", sent=460), "excuses": (40, 80)}
    message["summary"]["bytes_received"] = 220
    assert faults({"server": message}, [], []) == []


@pytest.mark.parametrize("segment", [1448, 1398, 536])
def test_what_a_nodes_own_queue_refused_at_first_is_counted_again_in_whole_segments(
    segment: int,
) -> None:
    counted = 690 * segment

    def found(sent: int) -> list[str]:
        message = done("server", sent=counted, segment=segment)
        message["counters"]["peer"]["bytes_sent"] = sent + 20  # 20 of them a second time
        return faults({"server": message}, [], [])

    for times in (0, 1, 3):
        assert found(counted + times * segment) == []
    for wrong in (counted - segment, counted + segment - 1, counted + 4 * segment):
        assert len(found(wrong)) == 1


STEPS = [{"node": "worker-0", "step": step} for step in (1, 2)]


def test_nodes_that_agree_have_no_fault() -> None:
    messages = {"server": done("server"), "worker-0": done("worker")}
    assert faults(messages, STEPS, [{"step": 1, "node": "server", "parameters": "cc"}]) == []


@pytest.mark.parametrize(
    ("messages", "steps", "said"),
    [
        (
            {"server": done("server"), "worker-0": done("worker", "bb")},
            STEPS,
            "after step 2 the replicas differed: server against worker-0",
        ),
        (
            {"worker-0": done("worker")},
            STEPS[:1],
            "worker-0 made 2 steps, but 1 are in the records",
        ),
        (
            {"worker-0": done("worker", sent=460)},
            STEPS,
            "frames of 460 B out and 300 B in, its sockets 500 B",
        ),
    ],
)
def test_disagreement_is_named(messages, steps, said) -> None:
    (sentence,) = faults(messages, steps, [])
    assert said in sentence
