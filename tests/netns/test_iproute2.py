"""What we make of the kernel's answers, and what iproute2 makes of the same ones: settings and counters."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from typing import Any

from netns_rig import MBIT, Rig, rate_of

from testbed.links.network import devices, namespaces
from testbed.links.network.devices import TcpSettings
from testbed.links.tc import htb
from testbed.links.tc.netlink import NetlinkChannel
from testbed.links.tc.parameters import CLASS_MINOR, ROOT, TICK_NS
from testbed.scenario.link_state import LinkDirection, LinkState
from testbed.topology import Interface

HANDLE = f"{ROOT:x}:{CLASS_MINOR:x}"
SENT, QUEUE, FRAME = 20, 5_000, 942


def by_ip(where: Interface, *arguments: str) -> list[dict[str, Any]]:
    command = ["nsenter", f"--net={where.netns}", "ip", "-s", "-d", "-j", *arguments]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return list(json.loads(said))


def send(rig: Rig, count: int, size: int = FRAME - 42) -> None:
    """Datagrams from the worker to the switch."""
    with (
        namespaces.inside(rig.places["worker-0"].nic.netns),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        for _ in range(count):
            sender.sendto(bytes(size), (rig.networks.switch_address, 9999))


def test_tc_reads_the_same_settings(rig: Rig) -> None:
    end = LinkDirection("worker-0", "up")
    rig.prepare({end: LinkState(37 * MBIT, 123_456, overhead_bytes=24)})
    nic = rig.places["worker-0"].nic
    seen = rig.tc(nic.netns, "class", "show", "dev", nic.name)  # of HTB there is no JSON
    listed = json.loads(rig.tc(nic.netns, "-j", "qdisc", "show", "dev", nic.name))
    (theirs,) = [qdisc for qdisc in listed if qdisc.get("parent") == HANDLE]
    (root,) = [qdisc for qdisc in listed if qdisc.get("root")]
    with NetlinkChannel(nic.netns) as channel:
        held = htb.decode_class(channel.ask(htb.read_class(nic.index)))
        disciplines = {qdisc.parent: qdisc for qdisc in htb.qdiscs(channel, nic.index)}
        leaf, ours = disciplines[htb.CLASS], disciplines[htb.AT_ROOT]
        limit = htb.decode_limit(channel.ask(htb.read_leaf(nic.index, leaf.handle >> 16)))
    words = seen.split()
    told = {name: words[words.index(name) + 1] for name in ("rate", "ceil", "overhead", "quantum")}
    assert words[:3] == ["class", "htb", HANDLE]
    assert told == {"rate": "37Mbit", "ceil": "37Mbit", "overhead": "24", "quantum": "60000"}
    assert held.pace.rate_bytes == held.ceil_bytes == 37 * MBIT // 8
    assert (held.pace.overhead_bytes, held.quantum_bytes) == (24, 60_000)
    bursts = [int(size) for size in re.findall(r"burst (\d+)b/1 mpu 0b", seen)]
    for size, ticks in zip(bursts, (held.pace.burst_ticks, held.ceil_burst_ticks), strict=True):
        assert abs(size - ticks * TICK_NS * held.ceil_bytes / 1e9) <= 1 + size * 1e-3
        assert abs(size - 1514) <= 3
    assert (theirs["kind"], theirs["options"]["limit"]) == (leaf.kind, leaf.limit_bytes)
    assert leaf.limit_bytes == limit == 123_456
    assert int(root["options"]["default"], 16) == ours.default_minor == CLASS_MINOR
    assert root["options"]["direct_packets_stat"] == ours.direct_packets == 0


def test_tc_counts_the_same(rig: Rig) -> None:
    """At 1 kbit/s all that is sent waits, or is dropped, for as long as the test lasts; at 200 Mbit/s all leaves."""
    end, nic = LinkDirection("worker-0", "up"), rig.places["worker-0"].nic
    rig.prepare({end: LinkState(1000, QUEUE)})
    send(rig, SENT)
    slow = counted_alike(rig, nic)
    assert slow.drops > 0 and slow.backlog_packets == QUEUE // FRAME
    assert slow.debt_ns > 1_000_000_000 and slow.rate_bytes == 125
    rig.prepare({end: LinkState(200 * MBIT, 1_000_000)})
    send(rig, SENT)
    with NetlinkChannel(nic.netns) as channel:
        while htb.decode_counters(channel.ask(htb.read_class(nic.index))).packets < SENT:
            pass
    fast = counted_alike(rig, nic)
    assert (fast.packets, fast.drops, fast.rate_bytes) == (SENT, 0, 25_000_000)


def counted_alike(rig: Rig, nic: Interface) -> htb.ClassCounters:
    """The class's counters, of which ``tc`` tells the same; and the leaf's are the same again."""
    with NetlinkChannel(nic.netns) as channel:
        ours = htb.decode_counters(channel.ask(htb.read_class(nic.index)))
    seen = rig.tc(nic.netns, "class", "show", "dev", nic.name)
    listed = json.loads(rig.tc(nic.netns, "-j", "qdisc", "show", "dev", nic.name))
    (leaf,) = [qdisc for qdisc in listed if qdisc.get("parent") == HANDLE]
    sent = re.findall(r"Sent (\d+) bytes (\d+) pkt \(dropped (\d+),", seen)
    size, packets, drops = map(int, sent[0])
    waiting, in_queue = map(int, re.findall(r"backlog (\d+)b (\d+)p", seen)[0])
    tokens = min(int(number) for number in re.findall(r"tokens: (-?\d+)", seen))
    assert (ours.bytes, ours.packets, ours.drops) == (size, packets, drops)
    assert (ours.backlog_bytes, ours.backlog_packets) == (waiting, in_queue)
    assert ours.debt_ns == max(0, -tokens) * TICK_NS
    by_leaf = [leaf[name] for name in ("bytes", "packets", "drops", "backlog", "qlen")]
    assert by_leaf == [size, packets, drops, waiting, in_queue]
    assert packets + drops + in_queue == SENT and size == packets * FRAME
    return ours


def test_ip_reads_the_same_of_devices(rig: Rig) -> None:
    rig.prepare({end: rate_of(20 * MBIT) for end in rig.ends()}, segments=3, at={"worker-0": "network"})  # fmt: skip
    send(rig, SENT)
    place = rig.places["worker-0"]
    for where in (place.nic, place.port):
        listed = {one["ifindex"]: one for one in by_ip(where, "link", "show")}
        with NetlinkChannel(where.netns) as channel:
            seen = {one.index: one for one in devices.all_devices(channel)}
            carried = {one.index: one for one in devices.interfaces(channel)}
            assert devices.device(channel, where.index) == seen[where.index]
        assert seen.keys() == carried.keys() == listed.keys()
        for index, theirs in listed.items():
            ours, counts, told = seen[index], carried[index], theirs["stats64"]
            assert (ours.name, ours.mac) == (theirs["ifname"], theirs["address"])
            assert ours.kind == theirs.get("linkinfo", {}).get("info_kind", "")
            assert ours.segments == theirs["gso_max_segs"]
            assert ours.alias == theirs.get("ifalias", "")
            assert (ours.peer, ours.peer_netns) == (theirs.get("link_index"), theirs.get("link_netnsid"))  # fmt: skip
            assert seen[ours.master].name == theirs["master"] if ours.master else "master" not in theirs  # fmt: skip
            assert counts.loopback == ("LOOPBACK" in theirs["flags"])
            assert (counts.sent_bytes, counts.sent_packets) == (told["tx"]["bytes"], told["tx"]["packets"])  # fmt: skip
            assert (counts.received_bytes, counts.received_packets) == (told["rx"]["bytes"], told["rx"]["packets"])  # fmt: skip
        addresses = {one["ifindex"]: {info["local"] for info in one["addr_info"]} for one in by_ip(where, "addr")}  # fmt: skip
        assert {index: set(one.addresses) for index, one in carried.items()} == addresses
        assert where == place.port or seen[where.index].segments == 3
    # where the switch is there is an intermediate device, a bridge, and what the worker sent
    assert {"narrows"} < {one.alias for one in seen.values()}
    assert {"bridge", "ifb", "veth"} < {one.kind for one in seen.values()}
    assert carried[place.port.index].received_packets == SENT


def test_ip_reads_the_same_of_routes(rig: Rig) -> None:
    nic = rig.places["worker-0"].nic
    for settings in (TcpSettings("reno", 80, True), TcpSettings("cubic", None, False)):
        rig.prepare({LinkDirection("worker-0", "up"): rate_of(20 * MBIT)}, **settings._asdict())
        with NetlinkChannel(nic.netns) as channel:
            (route,) = devices.subnet_routes(channel, nic.index)
        (theirs,) = by_ip(nic, "-4", "route", "show", "dev", nic.name)
        identity = dict(route.identity)
        metrics = {name: value for one in theirs["metrics"] for name, value in one.items()}
        told = TcpSettings(metrics.get("congestion"), metrics.get("rto_min"), "ecn" in metrics)
        assert route.settings == settings == told
        assert f"{identity['RTA_DST']}/{route.head['dst_len']}" == theirs["dst"]
        assert identity["RTA_PREFSRC"] == theirs["prefsrc"]
        assert (theirs["type"], theirs["scope"], theirs["protocol"]) == ("unicast", "link", "kernel")  # fmt: skip
