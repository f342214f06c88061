"""Shapes in the kernel: set, read back, changed in place, refused, undone."""

from __future__ import annotations

import os
import socket
import time

import pytest
from netns_rig import MBIT, Rig, rate_of

from testbed.errors import ExperimentError, LinkError, MachineError
from testbed.links.agent.protocol import LinkSettings
from testbed.links.network import devices, namespaces
from testbed.links.network.devices import locate
from testbed.links.shaper import ShapedQueue
from testbed.links.tc.htb import QdiscDevice
from testbed.links.tc.netlink import NetlinkChannel
from testbed.links.tc.parameters import pace
from testbed.scenario.link_state import Impairments, LinkChange, LinkDirection, LinkState


def segments(rig: Rig, netns: str | None, index: int) -> int:
    with NetlinkChannel(netns) as channel:
        return devices.device(channel, index).segments


def test_both_ends_hold_what_was_asked(rig: Rig) -> None:
    shapes = {end: rate_of(n * 10 * MBIT) for n, end in enumerate(rig.ends(), start=1)}
    held = rig.prepare(shapes, segments=4)
    by_end = {LinkDirection(link["link"], link["direction"]): link for link in held["links"]}
    for end, shape in shapes.items():
        assert by_end[end]["rate_bits"] == shape.rate_bits
        assert by_end[end]["limit_bytes"] == shape.queue_bytes
        assert by_end[end]["kind"] == "htb+bfifo"
        assert by_end[end]["congestion"] == "cubic"
    place = rig.places["worker-0"]
    nic = rig.tc(place.nic.netns, "class", "show", "dev", "data")
    assert "rate 30Mbit ceil 30Mbit" in nic
    port = rig.tc(place.port.netns, "class", "show", "dev", place.port.name)
    assert "rate 40Mbit ceil 40Mbit" in port
    assert "limit 250000b" in rig.tc(place.port.netns, "qdisc", "show", "dev", place.port.name)
    assert segments(rig, place.nic.netns, place.nic.index) == 4


def test_above_four_gigabytes_per_second(rig: Rig) -> None:
    end = LinkDirection("worker-0", "up")
    held = rig.prepare({end: LinkState(80_000 * MBIT, 10_000_000)})
    assert held["links"][0]["rate_bits"] == 80_000 * MBIT
    assert "rate 80Gbit" in rig.tc(rig.places["worker-0"].nic.netns, "class", "show", "dev", "data")


def test_undone_on_close(rig: Rig) -> None:
    rig.prepare({end: rate_of(10 * MBIT) for end in rig.ends()}, segments=2)
    place = rig.places["worker-0"]
    rig.agent.tear_down()
    assert not namespaces.NAMED.joinpath(str(place.nic.netns)).exists()


def test_a_change_in_place_keeps_what_waits(rig: Rig) -> None:
    end, place = LinkDirection("worker-0", "up"), rig.places["worker-0"]
    rig.prepare({end: LinkState(MBIT, 400_000)})
    with namespaces.inside(rig.networks.switch_netns):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        receiver.bind((rig.networks.switch_address, 9999))
    with namespaces.inside(place.nic.netns):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, receiver:
        receiver.settimeout(5)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        for number in range(100):
            sender.sendto(number.to_bytes(4) + bytes(1400), (rig.networks.switch_address, 9999))
        rates = [2 * MBIT, 5 * MBIT, MBIT, 50 * MBIT]
        t0 = rig.start(
            [LinkChange(0.02 * n, end, LinkState(r, 400_000)) for n, r in enumerate(rates)]
        )
        got = [int.from_bytes(receiver.recv(2000)[:4]) for _ in range(100)]
        rig.wait(t0 + 200_000_000)
        report = rig.stop()
    assert got == list(range(100))
    assert report.links[0].drops == 0
    assert report.links[0].changes == 4
    assert report.links[0].direct_packets == 0


@pytest.mark.parametrize(
    "change", [{"rate_bytes": 2_500_001}, {"overhead_bytes": 0}, {"overhead_bytes": 25}, {"mpu_bytes": 64}]
)  # fmt: skip
def test_every_value_of_the_class_is_read_back(rig: Rig, change: dict[str, int]) -> None:
    nic, shape = rig.places["worker-0"].nic, LinkState(20 * MBIT, 100_000, overhead_bytes=24)
    end = ShapedQueue(LinkDirection("worker-0", "up"), QdiscDevice(nic.netns, nic.index, nic.name))
    try:
        end.install(shape)
        assert end.verify(shape)["overhead_bytes"] == 24
        right = pace(shape.rate_bits, 24)
        end.send(end.class_message(right._replace(**change)))
        with pytest.raises(LinkError, match="'worker-0' up"):
            end.verify(shape)
        end.send(end.class_message(right))
        end.verify(shape)
    finally:
        end.remove()


@pytest.mark.parametrize("rate", [10 * MBIT, 20 * MBIT], ids=["alone", "with a rate"])
def test_a_change_of_the_queue_reaches_the_kernel(rig: Rig, rate: int) -> None:
    end, nic = LinkDirection("worker-0", "up"), rig.places["worker-0"].nic
    rig.prepare({end: LinkState(10 * MBIT, 100_000)})
    t0 = rig.start([LinkChange(0.05, end, LinkState(rate, 50_000))], lead_s=0.05)
    rig.wait(t0 + 150_000_000)
    assert "limit 50000b" in rig.tc(nic.netns, "qdisc", "show", "dev", "data")
    (link,) = rig.stop().links
    assert link.changes == 1 and link.mismatches == []


def test_unchanged_shapes_are_skipped(rig: Rig) -> None:
    end, shape = LinkDirection("worker-0", "up"), rate_of(10 * MBIT)
    rig.prepare({end: shape})
    t0 = rig.start([LinkChange(0.01 * n, end, shape) for n in range(5)], lead_s=0.05)
    rig.wait(t0 + 150_000_000)
    report = rig.stop()
    assert report.links[0].changes == 0
    assert report.links[0].lateness_ms is None


def test_a_foreign_root_is_refused_and_left_alone(rig: Rig) -> None:
    place = rig.places["worker-0"]
    rig.tc(place.nic.netns, "qdisc", "add", "dev", "data", "root", "handle", "5:", "htb")
    with pytest.raises(LinkError) as caught:
        rig.prepare({LinkDirection("worker-0", "up"): rate_of(10 * MBIT)})
    assert caught.value.link == "worker-0"
    assert "htb 5:" in caught.value.actual
    assert "qdisc htb 5: root" in rig.tc(place.nic.netns, "qdisc", "show", "dev", "data")


def test_an_unknown_congestion_control_names_what_there_is(rig: Rig) -> None:
    with pytest.raises(MachineError, match="does not offer") as caught:
        rig.prepare({LinkDirection("worker-0", "up"): rate_of(10 * MBIT)}, congestion="nosuch")
    assert "cubic" in (caught.value.fix or "")


@pytest.mark.parametrize("algorithm", ["cubic", "reno"])
def test_sockets_on_both_sides_use_the_congestion_control(rig: Rig, algorithm: str) -> None:
    rig.prepare(
        {end: rate_of(10 * MBIT) for end in rig.ends()}, congestion=algorithm, rto_min_ms=80
    )
    place, switch = rig.places["worker-0"], rig.networks.switch_netns
    with namespaces.inside(switch):
        listener = socket.create_server((rig.networks.switch_address, 9000))
    with namespaces.inside(place.nic.netns):
        client = socket.create_connection((rig.networks.switch_address, 9000), timeout=5)
    accepted, _ = listener.accept()
    with listener, client, accepted:
        for one in (client, accepted):
            name = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
            assert name.decode() == algorithm


def test_prepare_again_is_clean_after_an_unfinished_queue(rig: Rig) -> None:
    end, place = LinkDirection("worker-0", "up"), rig.places["worker-0"]
    rig.prepare({end: LinkState(100_000, 400_000)})
    with namespaces.inside(place.nic.netns):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        for _ in range(50):
            sender.sendto(bytes(1400), (rig.networks.switch_address, 9999))
    rig.prepare({end: rate_of(10 * MBIT)})
    time.sleep(0.05)
    shown = rig.tc(place.nic.netns, "class", "show", "dev", "data")
    assert "rate 10Mbit" in shown
    assert "backlog 0b 0p" in shown


def test_a_run_does_not_wait_for_what_the_one_before_sent(rig: Rig) -> None:
    """At 1 kbit/s the second frame of 1000 B leaves at once, and is paid for seconds later."""
    nic, slow = rig.places["worker-0"].nic, LinkState(1000, 100_000)
    end = ShapedQueue(LinkDirection("worker-0", "up"), QdiscDevice(nic.netns, nic.index, nic.name))
    with namespaces.inside(nic.netns):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    try:
        end.install(slow)
        sender.bind((nic.name, 0))
        for _ in range(2):
            sender.send(bytes(1000))
        before = end.read()
        assert before.backlog_bytes == 0 and before.debt_ns > 1_000_000_000
        end.install(slow)
        assert end.zero.debt_ns == 0
    finally:
        sender.close()
        end.remove()


def test_a_run_does_not_count_what_an_outage_of_the_run_before_threw_away(rig: Rig) -> None:
    end, place = LinkDirection("worker-0", "up"), rig.places["worker-0"]
    shape = LinkState(100_000, 400_000)
    rig.prepare({end: shape})
    with (
        namespaces.inside(place.nic.netns),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        for _ in range(50):  # 5.8 s of the link
            sender.sendto(bytes(1400), (rig.networks.switch_address, 9999))
    t0 = rig.start([LinkChange(0.0, end, LinkState(0, 400_000, drop=True))], lead_s=0.05)
    rig.wait(t0 + 500_000_000)
    (before,) = rig.stop().links
    assert before.drops > 0
    rig.prepare({end: shape})
    t0 = rig.start([], lead_s=0.05)
    rig.wait(t0)
    (link,) = rig.stop().links
    assert link.drops == 0


@pytest.mark.timed
def test_at_network_queues_one_hop_on(rig: Rig) -> None:
    end, place = LinkDirection("worker-0", "up"), rig.places["worker-0"]
    held = rig.prepare({end: rate_of(20 * MBIT)}, at={"worker-0": "network"})
    assert held["links"][0]["at"] == "network"
    assert held["links"][0]["device"] == f"nwi{place.port.index}"
    assert "htb" not in rig.tc(place.nic.netns, "qdisc", "show", "dev", "data")
    t0 = rig.start([])
    rig.fill("worker-0", "up", t0 + 2_500_000_000)
    rig.wait(t0 + 2_100_000_000)
    report = rig.stop()
    (link,) = report.links
    assert link.ratio is not None
    assert 0.95 < link.ratio < 1.01
    assert link.direct_packets == 0
    rig.prepare({end: rate_of(20 * MBIT)})
    assert "htb" in rig.tc(place.nic.netns, "qdisc", "show", "dev", "data")
    ingress = rig.tc(place.port.netns, "qdisc", "show", "dev", place.port.name)
    assert "ingress" not in ingress


def test_a_foreign_discipline_for_arrivals_is_refused_and_left_alone(rig: Rig) -> None:
    place = rig.places["worker-0"]
    rig.tc(place.port.netns, "qdisc", "add", "dev", place.port.name, "clsact")
    with pytest.raises(LinkError) as caught:
        rig.prepare(
            {LinkDirection("worker-0", "up"): rate_of(20 * MBIT)}, at={"worker-0": "network"}
        )
    assert "somebody else's" in caught.value.actual
    rig.prepare({LinkDirection("worker-0", "up"): rate_of(20 * MBIT)})
    assert "clsact" in rig.tc(place.port.netns, "qdisc", "show", "dev", place.port.name)


@pytest.mark.timed
def test_an_overhead_is_charged_for_every_packet(rig: Rig) -> None:
    """500 B more for packets of 542 B: half as many in the same time."""
    end, place = LinkDirection("worker-0", "up"), rig.places["worker-0"]
    held = rig.prepare({end: LinkState(MBIT, 100_000, overhead_bytes=542)})["links"][0]
    assert held["overhead_bytes"] == 542
    assert "overhead 542" in rig.tc(place.nic.netns, "class", "show", "dev", "data")
    with namespaces.inside(rig.networks.switch_netns):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((rig.networks.switch_address, 9999))
    with namespaces.inside(place.nic.netns):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, receiver:
        receiver.settimeout(5)
        took = {}
        for overhead in (542, 0):
            change = LinkChange(0.0, end, LinkState(MBIT, 100_000, overhead_bytes=overhead))
            t0 = rig.start([change], lead_s=0.05)
            rig.wait(t0 + 50_000_000)
            began = time.monotonic()
            for _ in range(60):
                sender.sendto(bytes(500), (rig.networks.switch_address, 9999))
            for _ in range(60):
                receiver.recv(2000)
            took[overhead] = time.monotonic() - began
            report = rig.stop()
            assert report.links[0].failure is None
    assert took[542] > 0.4  # 60 x 1084 B at 1 Mbit/s are 0.52 s
    assert took[542] > 1.6 * took[0]


@pytest.mark.optional
def test_delay_lines_are_refused_before_anything_is_made(rig: Rig) -> None:
    if "netem" in rig.agent.capabilities():
        pytest.skip("this kernel has netem, so that nothing is refused")
    place, end = rig.places["worker-0"], LinkDirection("worker-0", "up")
    before = segments(rig, place.nic.netns, place.nic.index)
    delayed = LinkState(20 * MBIT, 100_000, impairments=Impairments(delay_ns=1_000_000))
    with pytest.raises(MachineError, match=r"netem \(for worker-0 up\)") as caught:
        rig.prepare({end: delayed}, segments=before - 1)
    assert "CONFIG_NET_SCH_NETEM" in (caught.value.fix or "")
    assert segments(rig, place.nic.netns, place.nic.index) == before
    assert "htb" not in rig.tc(place.nic.netns, "qdisc", "show", "dev", "data")
    assert "ingress" not in rig.tc(place.port.netns, "qdisc", "show", "dev", place.port.name)
    cables = {name: found.cable for name, found in rig.places.items()}
    with pytest.raises(MachineError, match="netem"):
        rig.agent.prepare(cables, {end: rate_of(20 * MBIT)}, LinkSettings(segments=1), {end})


def test_locate_finds_both_ends_by_number(rig: Rig) -> None:
    netns = str(rig.places["worker-0"].nic.netns)
    with NetlinkChannel() as host, NetlinkChannel(netns) as channel:
        outer = devices.add_veth(host, f"nw{os.getpid()}", "located", netns)
        try:
            inner = devices.find(channel, "located")
            assert inner is not None
            nic, port = rig.agent.locate(netns, inner.mac)
            assert (nic.index, nic.name, port.netns) == (inner.index, "located", None)
            assert port.index == inner.peer == outer.index
        finally:
            devices.delete(host, outer.index)
        data = devices.find(channel, "data")
    assert data is not None
    with pytest.raises(ExperimentError, match="no interface"):
        rig.agent.locate(netns, "02:00:00:00:00:99")
    with pytest.raises(ExperimentError):
        locate(netns, data.mac)
