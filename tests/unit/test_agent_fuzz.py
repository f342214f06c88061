"""Hostile lines between the links agent and its client: each answered, or an error of ours, and soon."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fuzz_rig import TIMEOUT_S, altered, fuzzed, hostile, no_thread_fails
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import ExperimentError, NarrowsError, WireError
from testbed.links.agent import client
from testbed.links.agent import server as agent_module
from testbed.links.agent.client import AgentClient, AgentGone, ConnectedAgent
from testbed.links.agent.protocol import (
    InterfaceSeen,
    LinkSettings,
    SocketSeen,
    Watched,
    dump,
    lines_of,
    read,
)
from testbed.links.network.wiring import Resident
from testbed.topology import Cable, Interface

pytestmark = pytest.mark.timeout(TIMEOUT_S)
SOON_S = 20.0
REQUESTS: list[Any] = [
    {"id": 1, "op": "stop"},
    {"id": 2, "op": "start", "t0_ns": 5, "changes": [[0.5, "a", "up", 1000, 5]], "known_to_s": 3.0},
    {"id": 3, "op": "feed", "changes": [], "known_to_s": None},
    {"id": 4, "op": "watched"},
    {"id": 5, "op": "keep"},
    {"id": 6, "op": "unbuild"},
]
"""What touches nothing where nothing was made: as root, tests may not build what they made up."""
NIC = Interface("nw-x", 5, "eth0")
WATCHED = Watched(
    (SocketSeen(1, "10.0.0.1:5", "10.0.0.2:6", 1, 2, 3, 4, 5, 6),),
    (InterfaceSeen(1, "lo", True, ("127.0.0.1",), 1, 2, 3, 4),),
    None,
)
KINDS: list[tuple[Any, Any]] = [
    (LinkSettings, LinkSettings(1, {"a": "nic"}, "cubic")),
    (dict[str, Cable], {"a": Cable(NIC, NIC)}),
    (dict[str, tuple[Interface, Interface]], {"a": (NIC, NIC)}),
    (list[Resident], [Resident("nw-x", 5, "10.0.0.1")]),
    (dict[str, Watched], {"worker-0": WATCHED}),
]
ANSWERS: list[Any] = [
    {"id": 1, "ok": {"worker-0": asdict(WATCHED)}},
    {"id": 1, "error": {"kind": "LinkError", "link": "a", "direction": "up", "asked": "x", "held": "y"}},
    {"id": 1, "error": {"kind": "MachineError", "message": "x", "fix": None}},
    {"id": 1, "error": {"kind": "ExperimentError", "message": "x"}},
    {"records": [{"kind": "sample", "link": "a", "from_s": 0.0, "to_s": 0.1}]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("records", "latest_s", "said"), [(8, 60.0, None), (0, 60.0, "'stop'"), (8, 0.5, "'stop'")]
)
def test_an_agent_that_still_hands_over_records_is_waited_for(
    records: int, latest_s: float, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than others, and not for ever."""
    monkeypatch.setattr(client, "_ANSWER_S", 0.4)
    monkeypatch.setattr(client, "_LATEST_S", latest_s)
    hands_over = f"for n in $(seq {records}); do echo '{{\"records\": []}}'; sleep 0.1; done"
    waits = "" if records else "sleep 1; "
    agent = AgentClient(["sh", "-c", f"read asked; {waits}{hands_over}; echo '{{\"id\": 1, \"ok\": []}}'; read end"])  # fmt: skip
    try:
        if said is None:
            assert agent.stop().links == ()
        else:
            with pytest.raises(ExperimentError, match=f"did not answer {said}"):
                agent.stop()
    finally:
        agent.close()


@fuzzed
@given(hostile(REQUESTS))
def test_every_request_is_answered(line: bytes) -> None:
    agent = agent_module.AgentServer(lambda _: None)
    answer = json.loads(dump(agent.hear(line.decode(errors="replace"))))
    assert ("ok" in answer) != ("error" in answer)
    assert len(str(answer)) < 20_000
    assert agent.undo() == []


@fuzzed
@given(st.sampled_from(range(len(KINDS))), st.data())
def test_values_are_read_or_refused(number: int, data: st.DataObject) -> None:
    kind, value = KINDS[number]
    plain = json.loads(dump(value))
    assert read(kind, plain) == value
    try:
        read(kind, data.draw(altered(plain)))
    except WireError as error:
        assert len(str(error)) < 1000


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agent") / "said"


@pytest.fixture(autouse=True)
def no_thread() -> Iterator[None]:
    with no_thread_fails():
        yield


@fuzzed
@given(st.lists(hostile(ANSWERS), max_size=3).map(b"\n".join))
def test_an_agent_that_says_anything_is_heard_or_ends(said: Path, data: bytes) -> None:
    said.write_bytes(data + b"\n")
    agent = AgentClient(["cat", str(said)])
    try:
        assert isinstance(agent.watched(), dict)
    except NarrowsError as error:
        assert len(str(error)) < 20_000
    finally:
        agent.close()


@pytest.mark.parametrize(
    "line",
    [b"a print", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b'{"ok": 1}', b'{"id": 1}', b'{"id": 1, "error": {}}',
     b'{"id": 1, "error": {"kind": "LinkError"}}', b'{"id": [], "ok": 1}', b'{"records": 5}\n{"id": 1}'],
    ids=range(11),
)  # fmt: skip
def test_what_is_no_answer_is_not_waited_for(said: Path, line: bytes) -> None:
    """The agent would stay: its client gives up, and has it end."""
    said.write_bytes(line + b"\n")
    began_s = time.monotonic()
    agent = AgentClient(["sh", "-c", 'cat "$1"; exec sleep 1000', "sh", str(said)])
    with pytest.raises(ExperimentError, match=r"no answer|has ended|agent ended"):
        agent.watched()
    agent.close()
    assert not agent.alive() and time.monotonic() - began_s < SOON_S


def test_a_connection_that_is_reset_is_the_agents_end() -> None:
    """Another host's agent dies with a request that it has not read whole."""
    here, there = socket.socketpair()

    def die() -> None:
        there.recv(1)
        there.close()

    dying = threading.Thread(target=die)
    dying.start()
    agent = AgentClient(process=ConnectedAgent(here))
    try:
        with pytest.raises(AgentGone):
            agent.watched()
    finally:
        agent.close()
        dying.join()


def test_a_line_without_end_is_cut_off() -> None:
    most = 1 << 20
    program = f"import sys\nfor _ in range({100 * most >> 16}): sys.stdout.write('x' * (1 << 16))"
    assert list(lines_of(io.StringIO("x" * (most - 1) + "\n" + "y"), most)) == [
        "x" * (most - 1) + "\n",
        "y",
    ]

    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:  # fmt: skip
        assert process.stdout is not None
        tracemalloc.start()
        try:
            with pytest.raises(WireError, match=f"more than {most} characters"):
                next(lines_of(process.stdout, most))
            assert tracemalloc.get_traced_memory()[1] < 4 * most
        finally:
            tracemalloc.stop()
            process.kill()
