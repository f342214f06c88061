"""Who says to be a node is heard only from that node's address, whatever it knows of the run."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from command_rig import Command, Write, addresses
from netns_rig import specs
from stranger import Listening

from testbed.errors import WireError
from testbed.links.network.namespaces import inside
from testbed.node import Kind
from testbed.records.run_directory import read_json
from testbed.runner.control_channel import JsonLines
from testbed.runner.session import Session
from testbed.topology import CONTROL_PORT, DATA_PORT, Interface
from testbed.transport.frame import HEADER_BYTES, FrameHeader

pytestmark = pytest.mark.timeout(180)


def eventually(true: Callable[[], object], seconds: float = 60.0) -> None:
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.005)


@contextmanager
def held(pid: int) -> Iterator[None]:
    """A process that does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def own_address(pid: int) -> str:
    """On the data network."""
    found = re.search(r"data\s+inet ([\d.]+)/", addresses(pid))
    assert found is not None
    return found[1]


def listening_at(pid: int) -> Listening:
    network = f"/proc/{pid}/ns/net"
    with inside(network):
        index = socket.if_nametoindex("data")
    return Listening(Interface(network, index, "data"))


def turned_away(pid: int, address: str, greeting: bytes) -> bool:
    """Whether somebody beside that process who says this is hung up on."""
    with inside(f"/proc/{pid}/ns/net"):
        calling = socket.socket()
    with calling:
        calling.settimeout(5.0)
        calling.connect((address, DATA_PORT))
        calling.sendall(greeting)
        with suppress(TimeoutError):
            return calling.recv(1) == b""
        return False


@pytest.mark.judged
def test_nobody_takes_a_peers_place_on_the_data_network(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    """Worker-1 is late; somebody beside worker-0 says its name, with the run's number out of a greeting on the wire."""
    command = Command(tmp_path, "run", scenario(steps=6))
    eventually(lambda: list(tmp_path.glob("runs/*/scenario.yaml")))
    server, other, absent = (command.node(name) for name in ("server", "worker-0", "worker-1"))
    with held(absent), ExitStack() as until_there:
        until_there.enter_context(held(other))
        listening = listening_at(server)
        until_there.close()
        eventually(lambda: Kind.HELLO in listening._heard)
        genuine = FrameHeader.unpack(listening.end()[Kind.HELLO][:HEADER_BYTES])
        greeting = FrameHeader(Kind.HELLO, 2, genuine.run, 0, 0, 0, genuine.sent_ns).pack()
        assert turned_away(other, own_address(server), greeting)
    command.accept()
    (run,) = command.runs()
    assert read_json(run / "evidence.json")["nodes"]["server"]["strangers"] == 1


def test_nobody_takes_a_nodes_place_on_the_control_network(
    tmp_path: Path, state: Path, nothing_left: set[str]
) -> None:
    """Somebody in worker-1's namespace who knows the token says the server's name as soon as there is a control network."""
    session = Session(specs(2), "netns", tmp_path, trains=False)
    heard = list[dict[str, object]]()

    def pose() -> None:
        eventually(lambda: session._board is not None)
        (place,) = (n for n in session.fabric._plan.nodes if n.name == "worker-1")  # type: ignore[attr-defined]
        with inside(f"/run/netns/{place.netns}"):
            calling = socket.create_connection((session.networks.control_host, CONTROL_PORT), 10.0)
        lines = JsonLines(calling)
        lines.send("hello", node="server", token=session.context.token, pid=1)
        lines.send("up")
        with suppress(WireError):
            heard.extend(lines)
        lines.close()

    posing = threading.Thread(target=pose)
    posing.start()
    with session:
        posing.join(20.0)
        assert not posing.is_alive() and not heard
        assert session.control.connected() == ["server", "worker-0", "worker-1"]
        assert session.control.strangers == 1
