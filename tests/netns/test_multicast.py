"""IP multicast between namespaces: one copy on the sender's link, members alone are reached, nothing is lost."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from multicast_rig import carried, casters, hasten_reports, wait_until_quiet
from netns_rig import MBIT, Rig, assert_nothing_left, make_rig, names_of, rate_of, standing

from testbed.errors import MachineError, NodeLost
from testbed.fabric.netns import install, plan_racks, run_alias, run_tag
from testbed.links.network import namespaces
from testbed.node import Kind, Message
from testbed.topology import DATA_PORT, Interface, RackSpec
from testbed.transport.threaded_endpoint import ThreadedEndpoint

N = 10
BODY = bytes(range(256)) * 800


@pytest.fixture
def ten(tmp_path: Path, state: Path) -> Iterator[Rig]:
    with standing(tmp_path, state, workers=N - 1) as made:
        yield made


def unicast(rig: Rig, senders_link: str) -> int:
    """Bytes on the server's link when it sends ``BODY`` to everybody over TCP."""
    names = {place.spec.peer: name for name, place in rig.places.items()}
    endpoints = {}
    for number, name in names.items():
        with namespaces.inside(rig.places[name].nic.netns):
            endpoints[number] = made = ThreadedEndpoint(
                number, 7, names=names, clock=lambda ns: ns / 1e9, silence_s=20.0
            )
            if number == 0:
                made.listen(rig.places[name].data_address, DATA_PORT)
            else:
                made.connect(0, rig.places[senders_link].data_address, DATA_PORT, 5.0)
                made.send([0], Message(Kind.HELLO, 0, 0, number, b""))
    for _ in range(N - 1):
        endpoints[0].receive(5.0)
    before = carried(rig.places[senders_link])["sent"]
    endpoints[0].send(range(1, N), Message(Kind.GRADIENT, 0, 0, 0, BODY))
    for number in range(1, N):
        endpoints[number].receive(20.0)
    after = carried(rig.places[senders_link])["sent"]
    for made in endpoints.values():
        made.close()
    return after - before


def test_a_message_is_on_its_senders_link_once(ten: Rig) -> None:
    """And N - 1 times where it is sent over TCP; links send full packets, not bundles."""
    ten.prepare({end: rate_of(100 * MBIT) for end in ten.ends()}, segments=1)
    by_unicast = unicast(ten, "server")
    hasten_reports(ten.places)
    with casters(ten.places) as nodes:
        nodes.form([frozenset(range(N))])
        wait_until_quiet(ten.places)
        before = carried(ten.places["server"])["sent"]
        nodes.send(0, 0, 0, BODY)
        for number in range(1, N):
            assert bytes(nodes.receive(number).body) == BODY
        by_multicast = carried(ten.places["server"])["sent"] - before
        counted = nodes.nodes[0].counters()
        assert by_multicast == counted.sent.wire_bytes
    assert by_multicast * (N - 1) == pytest.approx(by_unicast, rel=0.03)


def test_only_members_are_reached(ten: Rig) -> None:
    """120 groups of three out of ten: whoever is not in one does not see a packet of it."""
    groups = [frozenset(members) for members in combinations(range(N), 3)]
    names = {place.spec.peer: name for name, place in ten.places.items()}
    hasten_reports(ten.places)
    with casters(ten.places) as nodes:
        nodes.form(groups)
        wait_until_quiet(ten.places)
        for group in (0, 41, 119):
            nodes.settle()
            members = sorted(groups[group])
            before = {number: carried(ten.places[name]) for number, name in names.items()}
            nodes.send(members[0], group, 0, BODY)
            for member in members[1:]:
                assert bytes(nodes.receive(member).body) == BODY
            for number, name in names.items():
                came = carried(ten.places[name])["received"] - before[number]["received"]
                if number in members[1:]:
                    assert len(BODY) < came < 1.1 * len(BODY)
                elif number not in members:
                    assert came == 0
        assert all(not node.counters().strangers for node in nodes.nodes.values())


def test_a_node_may_not_be_in_more_groups_than_the_kernel_allows(ten: Rig) -> None:
    limit = Path("/proc/sys/net/ipv4/igmp_max_memberships")
    with namespaces.inside(ten.places["server"].nic.netns):
        assert int(limit.read_text()) >= 1000
        limit.write_text("3")
    alone = {"server": ten.places["server"]}
    with casters(alone) as nodes, pytest.raises(MachineError, match="one too many"):
        nodes.form([frozenset({0, n}) for n in range(1, N)])


@pytest.mark.timed
def test_everybody_at_once(ten: Rig) -> None:
    """Nine senders into every link: their rates are held so that queues of 50 ms need not drop anything."""
    ten.prepare({end: rate_of(40 * MBIT) for end in ten.ends()})
    with casters(ten.places) as nodes:
        nodes.form([frozenset(range(N))])
        t0 = ten.start([], 0.5)
        ten.wait(t0)
        nodes.exchange(3, BODY)
        report = ten.stop()
        assert all(not node.counters().strangers for node in nodes.nodes.values())
        dropped = sum(link.drops for link in report.links)
        assert nodes.total("repairs") <= 0.02 * nodes.total("data") + 2 * dropped
        assert dropped <= 0.01 * N * nodes.total("data")


def test_a_dead_member_is_named(ten: Rig) -> None:
    with casters(ten.places, silence_s=2.0) as nodes:
        nodes.form([frozenset(range(N))])
        nodes.exchange(1, b"everybody is here")
        netns = ten.places["worker-3"].nic.netns
        subprocess.run(
            ["nsenter", f"--net={netns}", "ip", "link", "set", "data", "down"], check=True
        )
        began = time.monotonic()
        with pytest.raises(NodeLost, match="worker-3"):
            nodes.send(0, 0, 1, BODY)  # the window waits for it
        with pytest.raises(NodeLost, match="worker-3"):
            nodes.receive(0, 10.0)
        assert 1.9 < time.monotonic() - began < 15.0
        for number in (1, 2, 3, 5, 6, 7, 8, 9):
            assert bytes(nodes.receive(number).body) == BODY


def packets(interface: Interface) -> int:
    """That a device has received and sent."""
    with namespaces.inside(interface.netns):
        folder = Path("/proc/thread-self/net/dev").read_text().splitlines()
    name = f"{interface.name}:"
    fields = next(line.split(":")[1].split() for line in folder if line.strip().startswith(name))
    return int(fields[1]) + int(fields[9])


@pytest.mark.parametrize("own", [False, True])
def test_racks_get_what_their_members_are_in(tmp_path: Path, state: Path, own: bool) -> None:
    """``own``: the racks' bridges in a namespace made for them, as where nodes are containers."""
    rig = make_rig(tmp_path, workers=3)
    assert rig.fabric._plan is not None
    mine, run = names_of(rig), rig.fabric.context.id
    racks = [RackSpec("a", ("worker-0", "worker-1")), RackSpec("b", ("server",))]
    try:
        switch = None if own else rig.fabric._plan.switch_netns
        plan = plan_racks(run_tag(run), run_alias(run), racks, rig.places, switch)
        cables, rig.places = install(rig.agent, plan, rig.places)
        hasten_reports(rig.places)
        with casters(rig.places) as nodes:
            nodes.form([frozenset({0, 3}), frozenset({1, 2}), frozenset({0, 1})])
            wait_until_quiet(rig.places)
            for group, (sender, member) in enumerate([(0, 3), (2, 1), (1, 0)]):
                nodes.settle()
                others = [p for p in rig.places.values() if p.spec.peer not in (sender, member)]
                before = [carried(place)["received"] for place in others]
                uplink = packets(cables["a"].nic)
                nodes.send(sender, group, 0, BODY)
                assert bytes(nodes.receive(member).body) == BODY
                assert [carried(place)["received"] for place in others] == before
                crossed = 1 in (sender, member) and 2 not in (sender, member)
                assert (packets(cables["a"].nic) > uplink) == crossed
    finally:
        rig.fabric.destroy()
        assert_nothing_left(mine)
