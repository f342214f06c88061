"""Hostile lines on the control network: read as messages of a known form, or refused with a WireError."""

from __future__ import annotations

import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

import pytest
from fuzz_rig import TIMEOUT_S, changed, fuzzed, hostile, no_thread_fails
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import NodeLost, WireError
from testbed.records.events import (
    BucketRecord,
    DroppedRecord,
    EvaluationRecord,
    Event,
    FitRecord,
    GradientRecord,
    LabelsRecord,
    LostRecord,
    PassRecord,
    RestRecord,
    RoundRecord,
    StepRecord,
)
from testbed.records.run_directory import RunDirectory
from testbed.runner.control_channel import MAX_LINE, ControlServer, JsonLines
from testbed.runner.cross_traffic import CrossTraffic
from testbed.runner.observe import RunObserver
from testbed.runner.progress import Progress, sparkline
from testbed.runner.signals import Failures
from testbed.scenario.node_timeline import Flow
from testbed.topology import Interface, NodePlacement, NodeSpec
from testbed.transport.endpoint import GREETING_BYTES

pytestmark = pytest.mark.timeout(TIMEOUT_S)
TOKEN, NODE = "secret", "worker-0"
SOON_S = 20.0
HELLO = {"type": "hello", "node": NODE, "token": TOKEN, "pid": 1}
SEEN = {"sender": 1, "bytes": 40, "sent_s": 0.1, "first_s": 0.2, "arrived_s": 0.3, "last_s": 0.3}


def said(record: type[Event]) -> dict[str, Any]:
    """An event of a kind, as a node of ours says it."""
    values = {"int": 1, "float": 0.5, "str": NODE, "bool": False, "dict[str, int]": {NODE: 5}}
    own = {each.name: values.get(str(each.type)) for each in fields(record)}  # type: ignore[arg-type]
    own |= {name: {} for name in ("forward", "backward", "parts") if name in own}
    own |= {"messages": [SEEN]} if "messages" in own else {}
    own |= {
        name: value
        for name, value in (("seen", SEEN), ("table", []), ("others", []))
        if name in own
    }
    return {"v": 1, "kind": record.kind, **own}


EVENTS = [
    said(record)
    for record in (
        StepRecord, RoundRecord, EvaluationRecord, LostRecord, FitRecord, BucketRecord, PassRecord,
        GradientRecord, RestRecord, DroppedRecord, LabelsRecord,
    )
]  # fmt: skip
FROM_NODES: list[Any] = [
    HELLO,
    {"type": "up"},
    {"type": "ready", "run": "first"},
    {"type": "alive"},
    *({"type": "event", "event": event} for event in EVENTS),
    {"type": "burst", "record": {"kind": "sent", "flow": "bulk", "due_s": 0.0, "start_s": 0.0, "stop_s": 1.0,
                                 "bytes": 5, "tests": ["x"], "error": None}},
    {"type": "burst", "record": {"kind": "received", "flow": "bulk", "bytes": 5, "packets": 0, "lost": 0, "jitter_s": 0.0}},
    {"type": "burst", "record": {"kind": "stopped", "flow": "bulk", "code": 1}},
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
def test_nodes_that_say_anything_are_heard_or_lost(
    board: ControlServer, consumers: Consumers, data: bytes
) -> None:
    """After the greeting: what comes has what the session reads of it, and then the node is lost by name."""
    try:
        with closing(enters(board)) as node:
            say(node, data + b"\n")
            with pytest.raises(NodeLost) as lost:
                while (came := board.receive(SOON_S)) is not None:
                    assert came[0] == NODE
                    read(came[1], consumers)
        assert lost.value.node == NODE and len(str(lost.value)) < 1000
    finally:
        _forget(board)


@dataclass
class Consumers:
    """Whoever reads what nodes say of a run, as a trial has them."""

    directory: RunDirectory
    progress: Progress
    observer: RunObserver
    crossing: CrossTraffic


@pytest.fixture(scope="module")
def consumers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consumers]:
    path = tmp_path_factory.mktemp("run")
    (path / "events").mkdir()
    progress = Progress(quiet=True)
    progress.begin("none", 5, 1, 1)
    nowhere = Interface(None, 1, "lo")
    places = {
        name: NodePlacement(NodeSpec(name, name, "host", 0, n), "10.0.0.1", "10.0.1.1", nowhere, nowhere)
        for n, name in enumerate((NODE, "server"))
    }  # fmt: skip
    flow = Flow("bulk", NODE, "server", "tcp", None, None, 1, 0.0, 1.0)
    with RunDirectory(path) as directory:
        crossing = CrossTraffic([flow], places, None, directory.traffic)
        yield Consumers(directory, progress, RunObserver(lambda _: None), crossing)


def read(message: dict[str, Any], consumers: Consumers) -> None:
    """As a trial reads it, by what it reads it with."""
    match message["type"]:
        case "event":
            event = message["event"]
            consumers.directory.event("worker", 0, event)
            if event["kind"] == "lost":
                NodeLost(event["lost"], event["step"], event["reason"])
            consumers.progress.event(event)
            consumers.observer.event(event)
            values = [event[name] for name in ("density", "delay_s") if event["kind"] == "step"]
            sparkline(values)
        case "burst":
            if consumers.crossing.concerns(NODE, message["record"]):
                consumers.crossing.take(message["record"])
        case "done":
            assert isinstance(message["summary"], dict)
        case "ended":
            assert isinstance(message["part"], str)
        case "error":
            assert NODE in str(Failures.reported(NODE, message))
        case other:
            assert other in {"hello", "up", "ready"}


HOSTILE = {
    "a step without its delay": {"kind": "step", "step": 1},
    "a number of more than 64 bits": {**EVENTS[0], "step": 2**70},
    "half a character": {**EVENTS[0], "node": "\ud800"},
    "too deep": {**EVENTS[0], "selection": {"a": reduce(lambda inside, _: [inside], range(300), [])}},
    "no accuracy": {"kind": "evaluation"},
    "no time": {**EVENTS[0], "delay_s": float("nan")},
    "text for a number": {**EVENTS[0], "density": "0.5"},
    "a round of nothing": {**EVENTS[1], "messages": [{"sender": 1}]},
    "a lost worker without a reason": {"kind": "lost", "lost": "worker-1", "step": 1},
}  # fmt: skip


@pytest.mark.parametrize("event", HOSTILE.values(), ids=HOSTILE)
def test_a_node_is_lost_that_says_what_no_node_of_ours_says(
    board: ControlServer, event: dict[str, Any]
) -> None:
    with closing(enters(board)) as node:
        say(node, json.dumps({"type": "event", "event": event}).encode() + b"\n")
        with pytest.raises(NodeLost, match=r"as a node says it|no record can hold") as lost:
            board.receive(SOON_S)
    assert lost.value.node == NODE
    _forget(board)


@pytest.mark.parametrize(
    "record", [{}, {"kind": "sent", "flow": "bulk"}, {"kind": "x", "flow": "bulk"}]
)
def test_a_node_is_lost_that_says_nonsense_of_traffic(
    board: ControlServer, record: dict[str, Any]
) -> None:
    with closing(enters(board)) as node:
        say(node, json.dumps({"type": "burst", "record": record}).encode() + b"\n")
        with pytest.raises(NodeLost, match=r"as a node says it|no node says"):
            board.receive(SOON_S)
    _forget(board)


def test_what_nodes_of_ours_say_is_heard(board: ControlServer, consumers: Consumers) -> None:
    with closing(enters(board)) as node:
        for message in FROM_NODES[1:]:
            if message["type"] not in ("lost", "alive"):
                say_more(node, message)
                came = board.receive(SOON_S)
                assert came is not None and came == (NODE, message)
                read(came[1], consumers)
    _forget(board)


def say_more(connected: socket.socket, message: dict[str, Any]) -> None:
    connected.sendall(json.dumps(message).encode() + b"\n")


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
