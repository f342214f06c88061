"""Multicast between containers: the host's firewall is out of the way, and whoever is no member gets nothing."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from standing import Standing, left_of

from testbed.fabric.base import NodeSpec, RackSpec, RunContext
from testbed.fabric.docker import DockerFabric
from testbed.fabric.docker import fabric as module
from testbed.links.namespaces import NAMED

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

NODES = [NodeSpec(f"worker-{n}", "worker", "worker", n, n) for n in range(4)]
COUNT = 200
GROUP = "239.9.9.9"
SCRIPT = """
import socket, sys
own, group, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
talk = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if count:
    talk.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
    for _ in range(count):
        talk.sendto(bytes(1000), (group, 7080))
else:
    talk.bind(("", 7080))
    both = socket.inet_aton(group) + socket.inet_aton(own)
    talk.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, both)
    talk.settimeout(20)
    print("in", flush=True)
    talk.recv(2000)
    print("reached", flush=True)
    talk.recv(2000)
"""


@pytest.fixture(params=["plain", "racked", "not root"])
def standing(
    request: pytest.FixtureRequest, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Standing]:
    """``not root``: the agent is in the shaper's container, as members of the docker group have it."""
    monkeypatch.setattr(module, "_is_root", lambda: request.param != "not root")
    run = secrets.token_hex(3)
    fabric = DockerFabric(RunContext(run, tmp_path / run, "a-token", quiet=True, multicast=True))
    racks = [RackSpec("a", ("worker-0", "worker-1"))] if request.param == "racked" else []
    before = set(NAMED.glob("*-racks"))
    try:
        networks = fabric.create(NODES, racks)
        yield Standing(run, fabric, networks, fabric.start())
    finally:
        fabric.destroy()
    assert left_of(run) == []
    assert set(NAMED.glob("*-racks")) <= before


def received(standing: Standing, node: str) -> int:
    """Packets that a node's data NIC has had."""
    name = standing.places[node].nic.name
    lines = standing.inside(node, "cat", "/proc/net/dev").splitlines()
    return next(int(line.split()[2]) for line in lines if line.strip().startswith(f"{name}:"))


def test_members_alone_are_reached(standing: Standing) -> None:
    address = {name: place.data_address for name, place in standing.places.items()}
    members = {
        name: subprocess.Popen(
            ["docker", "exec", f"narrows-{standing.id}-{name}", "python", "-c", SCRIPT,
             address[name], GROUP, "0"], stdout=subprocess.PIPE, text=True,
        )
        for name in ("worker-1", "worker-2")
    }  # fmt: skip
    for member in members.values():
        assert member.stdout is not None
        assert member.stdout.readline() == "in\n"
    time.sleep(3.0)  # who joins says so three times
    before = received(standing, "worker-3")
    sent = [address["worker-0"], GROUP, str(COUNT)]
    standing.inside("worker-0", "python", "-c", SCRIPT, *sent)
    for member in members.values():
        assert member.stdout is not None
        assert member.stdout.readline() == "reached\n"
    assert received(standing, "worker-3") - before < COUNT / 10
    for member in members.values():
        member.communicate(timeout=30)
