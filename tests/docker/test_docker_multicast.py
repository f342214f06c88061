"""Multicast between containers: the host's firewall is out of the way, and whoever is no member gets nothing."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from standing import FOUR, Standing, standing

from testbed.fabric.docker import fabric as module
from testbed.links.network.namespaces import NAMED
from testbed.topology import RackSpec

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

COUNT = 200
GROUP = "239.9.9.9"
LAST = "last"
SEND = """
import socket, sys
own, group, count, last = sys.argv[1:]
talk = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
talk.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
for _ in range(int(count)):
    talk.sendto(last.encode() or bytes(1000), (group, 7080))
"""
RECEIVE = """
import socket, sys
own, group, last = sys.argv[1:]
talk = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
talk.bind(("", 7080))
both = socket.inet_aton(group) + socket.inet_aton(own)
talk.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, both)
talk.settimeout(60)
print("in", flush=True)
count = 0
while talk.recv(2000) != last.encode():
    count += 1
print(count, flush=True)
"""


# every day tests/netns/test_multicast.py has members in racks, whose bridges are the same here
@pytest.fixture(params=["plain", pytest.param("racked", marks=pytest.mark.nightly), "not root"])
def cast(
    request: pytest.FixtureRequest, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Standing]:
    """``not root``: the agent is in the shaper's container, as members of the docker group have it."""
    if request.param == "plain":
        yield request.getfixturevalue("casting")
        return
    monkeypatch.setattr(module, "_is_root", lambda: request.param != "not root")
    racks = [RackSpec("a", ("worker-0", "worker-1"))] if request.param == "racked" else []
    before = set(NAMED.glob("*-racks"))
    with standing(tmp_path, FOUR, racks, multicast=True) as made:
        yield made
    assert set(NAMED.glob("*-racks")) <= before


def received(cast: Standing, node: str) -> int:
    """Packets that a node's data NIC has had."""
    name = cast.places[node].nic.name
    lines = cast.inside(node, "cat", "/proc/net/dev").splitlines()
    return next(int(line.split()[2]) for line in lines if line.strip().startswith(f"{name}:"))


def came(cast: Standing, *nodes: str) -> dict[str, int]:
    """Packets that each node's data NIC has had while ``COUNT`` were sent to the group."""
    before = {node: received(cast, node) for node in nodes}
    send(cast, COUNT)
    return {node: received(cast, node) - count for node, count in before.items()}


def send(cast: Standing, count: int, last: str = "") -> None:
    own = cast.places["worker-0"].data_address
    cast.inside("worker-0", "python", "-c", SEND, own, GROUP, str(count), last)


def test_members_alone_are_reached(cast: Standing) -> None:
    members = {
        name: subprocess.Popen(
            ["docker", "exec", f"narrows-{cast.id}-{name}", "python", "-c", RECEIVE,
             cast.places[name].data_address, GROUP, LAST], stdout=subprocess.PIPE, text=True,
        )
        for name in ("worker-1", "worker-2")
    }  # fmt: skip
    for member in members.values():
        assert member.stdout is not None
        assert member.stdout.readline() == "in\n"
    give_up = time.monotonic() + 60
    while (
        came(cast, "worker-3")["worker-3"] >= COUNT / 10
    ):  # who is a member is not known everywhere yet
        assert time.monotonic() < give_up
    found = came(cast, *cast.places)
    assert found["worker-3"] < COUNT / 10
    assert min(found["worker-1"], found["worker-2"]) >= COUNT
    send(cast, 5, LAST)
    for member in members.values():
        # the interface had them all; a socket's buffer is short where its process waits for a processor
        assert int(member.communicate(timeout=30)[0]) >= COUNT / 2
