"""Racks: a bridge of their own, one shared cable, and nothing left of either."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from netns_rig import MBIT, Rig, assert_nothing_left, make_rig, rate_of

from testbed.errors import ExperimentError
from testbed.fabric.cleanup import sweep
from testbed.fabric.netns import install, plan_racks, run_alias, run_tag
from testbed.journal import journals
from testbed.links.agent.client import AgentClient
from testbed.links.agent.protocol import LinkSettings
from testbed.links.network import devices, namespaces
from testbed.links.network.topology import remove, remove_racks
from testbed.links.tc.netlink import NetlinkChannel
from testbed.process import environment
from testbed.scenario.link_state import LinkDirection
from testbed.topology import RackSpec

RACKS = [RackSpec("a", ("worker-0", "worker-1")), RackSpec("b", ("server",))]
PORT, SECONDS = 7300, 3


class RackedRig:
    """A rig of a server and three workers, of which two are in rack a and one is in none."""

    def __init__(self, rig: Rig, own: bool) -> None:
        self.rig = rig
        fabric = rig.fabric
        assert fabric._plan is not None
        run = fabric.context.id
        switch = None if own else fabric._plan.switch_netns
        self.plan = plan_racks(run_tag(run), run_alias(run), RACKS, rig.places, switch)
        self.cables, rig.places = install(rig.agent, self.plan, rig.places)

    def prepare(self, **rates: int) -> None:
        """Everything at 200 Mbit/s, and racks as asked."""
        names = [*self.rig.places, *self.cables]
        shapes = {
            LinkDirection(name, way): rate_of(rates.get(name, 200) * MBIT)
            for name in names
            for way in ("up", "down")
        }
        cables = {name: place.cable for name, place in self.rig.places.items()} | self.cables
        settings = LinkSettings(segments=1, congestion="cubic")
        self.rig.agent.prepare(cables, shapes, settings)


@pytest.fixture(params=["switch", "own"])
def racked(request: pytest.FixtureRequest, tmp_path: Path, state: Path) -> Iterator[RackedRig]:
    """``own``: in a namespace made for the racks, as containers have them."""
    rig = make_rig(tmp_path, workers=3)
    assert rig.fabric.journal is not None
    try:
        yield RackedRig(rig, request.param == "own")
    finally:
        names = [e["name"] for e in rig.fabric.journal.entries if "name" in e]
        rig.fabric.destroy()
        assert_nothing_left(names)
        assert not list(state.glob("*.journal"))


def iperf(
    rig: Rig, source: str, sink: str, seconds: int, port: int, streams: int = 1
) -> list[subprocess.Popen[str]]:
    """A server, which ends after one test, and its client."""
    at, to = rig.places[source], rig.places[sink]
    address = to.data_address
    commands = [
        ["nsenter", f"--net={to.nic.netns}", "iperf3", "-s", "-1", "-B", address, "-p", str(port)],
        ["nsenter", f"--net={at.nic.netns}", "iperf3", "-c", address, "-p", str(port), "-J",
         "-t", str(seconds), "-P", str(streams)],
    ]  # fmt: skip
    started = []
    for command in commands:
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        give_up, listening = time.monotonic() + 10, ""
        while not listening:
            assert time.monotonic() < give_up, "iperf3 does not listen"
            time.sleep(0.02)
            listening = subprocess.run(
                ["nsenter", f"--net={to.nic.netns}", "ss", "-Hltn", f"sport = :{port}"],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
    return started


def received_bits(flows: list[list[subprocess.Popen[str]]]) -> list[float]:
    found = []
    for server, client in flows:
        told, _ = client.communicate(timeout=30)
        server.communicate(timeout=30)
        found.append(float(json.loads(told)["end"]["sum_received"]["bits_per_second"]))
    return found


def reach(rig: Rig, source: str, address: str) -> None:
    """Where nobody listens, being refused is proof of having been there."""
    with namespaces.inside(rig.places[source].nic.netns), pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, 9), 3).close()


def test_everyone_reaches_everyone_and_the_switch(racked: RackedRig) -> None:
    rig = racked.rig
    racked.prepare()
    for source in rig.places:
        reach(rig, source, rig.networks.switch_address)
        for sink in rig.places.values():
            reach(rig, source, sink.data_address)
    for cable in racked.cables.values():  # where there is IPv6, it speaks over links unasked
        with namespaces.inside(cable.nic.netns):
            assert not Path("/proc/thread-self/net/if_inet6").read_text()


@pytest.mark.timed
def test_two_flows_share_the_uplink_and_its_class_counts_them(racked: RackedRig) -> None:
    rig = racked.rig
    racked.prepare(a=20)
    rig.start([])
    # several each: their slow starts fill the queue
    both = [iperf(rig, f"worker-{n}", "server", SECONDS, PORT + n, streams=24) for n in (0, 1)]
    through = received_bits(both)
    report = {(end.link, end.direction): end for end in rig.stop().links}
    assert 0.75 * 20e6 < sum(through) < 25e6  # each of the two has a time of its own
    crossed = report["a", "up"].class_bytes
    assert crossed >= sum(through) * SECONDS / 8 * 0.95
    assert crossed == pytest.approx(report["server", "down"].class_bytes, rel=0.02)
    assert crossed == report["b", "down"].class_bytes
    ups = sum(report[f"worker-{n}", "up"].class_bytes for n in (0, 1))
    lost = report["a", "up"].drops
    assert ups - crossed <= lost * 1514 + 100_000 and lost > 0
    # No stranger's packet strayed to a link that it had no business on.
    assert report["worker-2", "down"].class_bytes < 2_000
    assert report["a", "up"].direct_packets == 0


@pytest.mark.timed
def test_neighbours_in_a_rack_do_not_use_its_uplink(racked: RackedRig) -> None:
    rig = racked.rig
    racked.prepare(a=10)
    rig.start([])
    (through,) = received_bits([iperf(rig, "worker-0", "worker-1", 1, PORT)])
    report = {(end.link, end.direction): end for end in rig.stop().links}
    assert through > 50e6
    assert report["a", "up"].class_bytes < 2_000


def test_ports_go_back_where_they_were(racked: RackedRig) -> None:
    rig, switch = racked.rig, racked.rig.networks.switch_netns
    assert rig.fabric._plan is not None
    racked.prepare()
    with NetlinkChannel(switch) as channel:
        core = devices.find(channel, "switch")
    assert core is not None
    before = {name: place.port.name for name, place in rig.fabric._places(rig.fabric._plan).items()}
    assert remove_racks(racked.plan) == []
    with NetlinkChannel(switch) as channel:
        for name in before.values():
            port = devices.find(channel, name)
            assert port is not None and port.master == core.index
        assert devices.find(channel, "rack0") is None


def test_racks_that_were_made_in_part_are_undone(rig: Rig) -> None:
    run = rig.fabric.context.id
    racks = [RackSpec("a", ("worker-0",)), RackSpec("b", ("server",))]
    plan = plan_racks(run_tag(run), run_alias(run), racks, rig.places)
    first, second = plan.racks
    with pytest.raises(ExperimentError, match="exist"):
        rig.agent.racks(replace(plan, racks=(first, replace(second, port=first.port))))
    home = Path(namespaces.path_of(plan.netns))
    assert home.exists()
    assert rig.agent.tear_down() == []
    assert not home.exists()


def test_a_network_that_was_made_in_part_is_undone(rig: Rig) -> None:
    assert rig.fabric._plan is not None
    here = rig.fabric._plan
    nodes = [replace(node, netns=f"{node.netns}-b") for node in here.nodes]
    plan = replace(
        here,
        switch_netns=f"{here.switch_netns}-b",
        control_netns=f"{here.control_netns}-b",
        nodes=(*nodes, nodes[0]),
    )
    homes = [
        Path(namespaces.path_of(name))
        for name in (plan.switch_netns, plan.control_netns, *(node.netns for node in nodes))
    ]
    agent = AgentClient.local()
    try:
        with pytest.raises(ExperimentError, match="exist"):
            agent.build(plan)
        assert all(home.exists() for home in homes)
        assert agent.tear_down() == []
        assert not any(home.exists() for home in homes)
    finally:
        agent.close()
        remove(plan)


CONTROLLER = """
import sys, time
from pathlib import Path
sys.path[:0] = [{here!r}, str(Path({here!r}).parent)]
from netns_rig import specs
from testbed.topology import RackSpec; from testbed.fabric.base import RunContext
from testbed.fabric.netns import NetnsFabric
fabric = NetnsFabric(RunContext({run!r}, Path({folder!r}), "token", trains=False))
fabric.create(specs(2), [RackSpec("a", ("worker-0", "worker-1"))])
fabric.start()
print(fabric.agent.pid, *fabric.racks, flush=True)
time.sleep(60)
"""


def test_clean_removes_racks_after_everyone_was_killed(state: Path, tmp_path: Path) -> None:
    run = secrets.token_hex(8)
    here = str(Path(__file__).parent)
    program = CONTROLLER.format(here=here, folder=str(tmp_path), run=run)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    with process.stdout:
        agent, rack = process.stdout.readline().split()
    assert rack == "a"
    os.kill(int(agent), signal.SIGKILL)
    process.kill()
    process.wait()
    (journal,) = journals()
    names = [entry["name"] for entry in journal.entries if "name" in entry]
    sweep(journal)
    assert_nothing_left(names)
