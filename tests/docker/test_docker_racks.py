"""Racks, cross traffic and events of nodes where nodes are containers."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_rig import Command
from crossed_rig import TRAFFIC, of, records, write
from standing import SPECS, Standing, left_of

from testbed.fabric.base import NodeSpec, RackSpec, RunContext
from testbed.fabric.docker import DockerFabric
from testbed.fabric.docker import fabric as module
from testbed.fabric.netns_plan import run_tag

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

NODES = [*SPECS, NodeSpec("worker-1", "worker", "worker", 1, 2)]
RACKS = [RackSpec("a", ("worker-0", "worker-1"))]
REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), 3)
except ConnectionRefusedError:
    print("reached")
"""


@pytest.fixture
def racked(image: str, tmp_path: Path) -> Iterator[Callable[[], Standing]]:
    made: list[DockerFabric] = []

    def make() -> Standing:
        run = secrets.token_hex(3)
        fabric = DockerFabric(RunContext(run, tmp_path / run, "a-token", quiet=True))
        made.append(fabric)
        networks = fabric.create(NODES, RACKS)
        return Standing(run, fabric, networks, fabric.start())

    yield make
    for fabric in made:
        fabric.destroy()


def host_state() -> str:
    """Rules of the firewall, and what bridges do about it."""
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    settings = [path.read_text() for path in sorted(Path("/proc/sys/net/bridge").glob("*"))]
    return "\n".join(line.partition("[")[0] for line in rules.splitlines() if line[0] != "#") + (
        "".join(settings)
    )


@pytest.mark.parametrize("root", [True, False])
def test_racks_stand_where_no_firewall_looks(
    racked: Callable[[], Standing], monkeypatch: pytest.MonkeyPatch, root: bool
) -> None:
    """``root`` False: the agent is in the shaper's container, as members of the docker group have it."""
    monkeypatch.setattr(module, "_is_root", lambda: root)
    made = racked()
    tag = run_tag(made.id)
    before = host_state()
    cable = made.fabric.racks["a"]
    assert cable.port.netns is None and Path("/sys/class/net", cable.port.name).exists()
    for name in ("worker-0", "worker-1"):
        assert str(made.places[name].port.netns).endswith(f"nw-{tag}-racks")
        assert not Path("/sys/class/net", made.places[name].port.name).exists()
    for source in made.places:
        for place in made.places.values():
            assert made.inside(source, "python", "-c", REACH, place.data_address) == "reached"
        gateway = made.networks.switch_address
        assert made.inside(source, "python", "-c", REACH, gateway) == "reached"
    assert host_state() == before
    made.fabric.destroy()
    assert left_of(made.id) == []
    assert not Path("/sys/class/net", cable.port.name).exists()
    assert not Path(f"/run/netns/nw-{tag}-racks").exists()


def test_a_run_with_racks_traffic_and_events(
    tmp_path: Path, image: str, nothing_left: set[str]
) -> None:
    events = (
        "{kind: pause, nodes: [worker-1], at: 1 s, for: 1 s}, "
        "{kind: kill, nodes: [noise-1], at: 1500 ms, restart_after: 500 ms}"
    )
    path = write(tmp_path, traffic=TRAFFIC, events=events, steps=90)
    command = Command(tmp_path, "run", path, "--fabric", "docker", "--json")
    _, out, err = command.finish(200)
    assert out, err
    assert json.loads(out)["runs"][0]["steps"] == 90, err
    (links,) = records(tmp_path, "links.jsonl")
    actions = [record["action"] for record in links if record["kind"] == "node"]
    assert sorted(actions) == ["kill", "pause", "restart", "resume"]
    (bursts,) = records(tmp_path, "traffic.jsonl")
    assert of(bursts, "bulk", "received")[0]["bytes"] > 500_000
    assert of(bursts, "steady", "sent")[-1]["start_s"] >= 2.0
    evidence = json.loads(next(tmp_path.glob("runs/*/evidence.json")).read_text())
    held = {(link["link"], link["direction"]): link["class_bytes"] for link in evidence["links"]}
    assert held["a", "up"] > of(bursts, "bulk", "received")[0]["bytes"]


def test_clean_removes_racks_after_everyone_was_killed(
    tmp_path: Path, image: str, nothing_left: set[str]
) -> None:
    path = write(tmp_path, events="{kind: pause, nodes: [worker-1], at: 1 s, for: 9 s}", steps=500)
    command = Command(tmp_path, "run", path, "--fabric", "docker")
    command.until(
        lambda: any("pause" in str(found) for found in records(tmp_path, "links.jsonl")), 90
    )
    agent = command.agent()
    os.kill(agent, signal.SIGKILL)
    command.process.kill()
    command.process.communicate()
    racks = [
        path for path in Path("/run/netns").glob("nw-*-racks") if path.name not in nothing_left
    ]
    assert racks
    subprocess.run([sys.executable, "-m", "testbed", "clean"], check=True, timeout=90)
    assert not any(path.exists() for path in racks)
