"""Messages to the kernel, byte for byte those of an encoder written by hand; and read again as they were meant.

Those of traffic control are compared with ``hand_encoder`` message by message: for every scenario, all that its links may be told in a
minute, as ``ShapedQueue``, ``NetemStage`` and ``LinkPlayer`` prepare it. The numbers are computed twice, too, but for what a link is
charged at low rates and in outages, which depends on the moment (``test_links_slow.py``).

``netlink_messages.json`` has one message of each kind as the testbed's own code made it before pyroute2 laid them out: of traffic control
under ``kinds`` (with a table of delays its SHA-256), and those that build networks. ``hand_encoder`` is compared with them, too. Two differ
from what was recorded then: pyroute2 ends a device's alias with a zero, which the kernel takes and leaves out; and the filter's selector
was two bytes of zeros too long. Under ``answers`` are two of a kernel, Linux 6, of which ``tc -s`` told the numbers in the test.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import hand_encoder as by_hand
import pytest
from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL
from pyroute2.netlink.diag import SOCK_DIAG_BY_FAMILY
from pyroute2.netlink.rtnl import RTM_GETLINK, RTM_GETQDISC
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.links.netem_stage import NetemStage, seed_of
from testbed.links.network import bridges, connections, devices
from testbed.links.network.devices import SubnetRoute, TcpSettings
from testbed.links.replay.link_player import (
    LONGEST_NS,
    LinkPlayer,
    Step,
    charge_for,
    charge_of,
    is_slow,
    pace_at,
)
from testbed.links.shaper import CLOSED_RATE_BITS, ShapedQueue
from testbed.links.tc import htb, netem
from testbed.links.tc.htb import QdiscDevice
from testbed.links.tc.netem import NetemState
from testbed.links.tc.netlink import AttributeReader, NetlinkChannel, encode, tree
from testbed.links.tc.parameters import (
    LEAVES,
    LINE_HANDLE,
    LinkPace,
    limit_packets,
    netem_probabilities,
    pace,
)
from testbed.scenario.link_state import (
    FourState,
    GilbertElliott,
    Impairments,
    LinkChange,
    LinkDirection,
    LinkState,
    Slot,
)
from testbed.scenario.load import load

SCENARIOS = Path(__file__).parents[2] / "scenarios"
RECORDED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("netlink_messages.json").read_text()
)
SECONDS = 60.0
MAC = "02:42:ac:11:00:02"
Pair = tuple[str, bytes, bytes]
"""What it is for; the links' message, and the one by hand."""


class Asked:
    """In the place of a channel: keeps what a link is told, and answers as an empty class did."""

    def __init__(self) -> None:
        self.told: list[bytes] = []

    def send(self, *messages: bytes) -> None:
        self.told += messages

    def ask(self, _: bytes) -> bytes:
        return bytes.fromhex(RECORDED["answers"]["fast"])

    def close(self) -> None:
        pass


def of_queue(shaped: ShapedQueue, shape: LinkState) -> Iterator[Pair]:
    """How it begins, is emptied twice, is looked at and ends."""
    index, own = shaped.where.index, shaped._channel
    asked = shaped._channel = Asked()  # type: ignore[assignment]
    shaped._make(shape)
    shaped.flush()
    shaped.flush()
    shaped._channel = own
    limit = shape.queue_bytes if shape.rate_bits else 0
    by_rate = by_hand.pace(shape.rate_bits or CLOSED_RATE_BITS, shape.overhead_bytes)
    first, other = by_hand.LEAVES
    wanted = [
        by_hand.add_root(index), by_hand.add_class(index, by_rate), by_hand.add_leaf(index, first, limit),
        by_hand.change_leaf(index, first, 0), by_hand.add_leaf(index, other, 0),
        by_hand.change_leaf(index, other, 0), by_hand.add_leaf(index, first, 0),
    ]  # fmt: skip
    yield from (("queue", *pair) for pair in zip(asked.told, wanted, strict=True))  # type: ignore[misc]
    yield "read", shaped._read, by_hand.read_class(index)
    yield "read", htb.read_leaf(index, shaped.leaf), by_hand.read_leaf(index, first)
    listed = encode(htb.traffic_control(index, 0, 0), RTM_GETQDISC, NLM_F_DUMP)
    yield "list", listed, by_hand.list_disciplines(index)
    yield "delete", htb.delete_root(index, shaped.handle), by_hand.delete_root(index, by_hand.ROOT)


def of_rate(shaped: ShapedQueue, shape: LinkState, coming: list[Step]) -> Iterator[Pair]:
    """What its class may have at a low rate or in an outage; of the moment's settings one."""
    if shape.rate_bits:
        settings = [pace_at(shape, 0, LONGEST_NS, lambda: coming)] if is_slow(shape) else []
    else:
        until = next((at for at, rate in coming if rate), LONGEST_NS)
        settings = [charge_of(min(LONGEST_NS, max(1, until)))]
    for setting in settings:
        message = by_hand.change_class(shaped.where.index, setting)
        yield "charge", shaped.class_message(setting), message


class LineByHand:
    """What a delay line is told, computed beside it."""

    def __init__(self, end: LinkDirection, index: int, shape: LinkState) -> None:
        self.end, self.index, self.number = end, index, 0
        self.asked, self.limit = shape.impairments, self._room(shape)

    def add(self) -> bytes:
        return by_hand.add_line(self.index, self._state())

    def following(self, shape: LinkState) -> bytes | None:
        limit = max(self.limit, self._room(shape))
        if (shape.impairments, limit) == (self.asked, self.limit):
            return None
        anew = shape.impairments.distribution != self.asked.distribution
        self.asked, self.limit, self.number = shape.impairments, limit, self.number + 1
        return by_hand.change_line(self.index, self._state(), with_table=anew)

    def _state(self) -> NetemState:
        seed = seed_of(self.end, self.asked.seed, self.number)
        return NetemState(replace(netem_probabilities(self.asked), seed=seed), self.limit)

    def _room(self, shape: LinkState) -> int:
        return limit_packets(shape.rate_bits, shape.queue_bytes, shape.impairments)


def of_link(
    end: LinkDirection, index: int, first: LinkState, changes: list[LinkChange]
) -> Iterator[Pair]:
    where = QdiscDevice(None, index, "device")
    shaped, line = ShapedQueue(end, where), NetemStage(end, where)
    with closing(shaped._channel), closing(line._channel):
        yield from of_queue(shaped, first)
        line.setting, expected = line._first(first), LineByHand(end, index, first)
        yield "line", netem.set_line(index, line.setting.state, htb.ADD), expected.add()
        yield "read", line._read, by_hand.read_line(index)
        yield (
            "delete",
            htb.delete_root(index, line.handle),
            by_hand.delete_root(index, by_hand.LINE),
        )
        player = LinkPlayer(shaped, first, line)
        for number, change in enumerate(changes):
            shape, due = change.shape, player.due(change, round(change.time_s * 1e9))
            if shape.rate_bits:
                plain = by_hand.pace(shape.rate_bits, shape.overhead_bytes)
                assert due.message is not None
                yield "rate", due.message, by_hand.change_class(index, plain)
            limit = by_hand.change_leaf(index, LEAVES[0], shape.queue_bytes)
            yield "queue length", shaped.limit_message(shape.queue_bytes), limit
            message = expected.following(shape)
            assert (due.line is None) == (message is None)
            if due.line is not None and message is not None:
                yield "line", due.line.message, message
            following = changes[number + 1 : number + 50]
            coming = [
                (round((later.time_s - change.time_s) * 1e9), later.shape.rate_bits)
                for later in following
            ]
            yield from of_rate(shaped, shape, coming)


def differences(pairs: Iterator[Pair]) -> tuple[int, list[str]]:
    """How many were compared, and the first that differ."""
    compared, wrong = 0, []
    for compared, (name, ours, theirs) in enumerate(pairs, 1):
        if ours != theirs:
            wrong.append(f"{compared}, {name}: {ours.hex()} is not {theirs.hex()}")
    return compared, wrong[:3]


@pytest.mark.parametrize(
    "path",
    sorted(SCENARIOS.rglob("*.yaml")),
    ids=lambda path: str(path.relative_to(SCENARIOS)),
)
def test_every_message_of_every_scenario(path: Path) -> None:
    timeline = load(path, timed=False).timeline()
    changes = list(timeline.changes(0.0, SECONDS))
    assert timeline.initial
    for index, (end, shape) in enumerate(sorted(timeline.initial.items()), 2):
        mine = [change for change in changes if change.end == end]
        compared, wrong = differences(of_link(end, index, shape, mine))
        assert not wrong and compared >= 14 + len(mine), end


LINES = {
    "nothing": Impairments(),
    "all shares": Impairments(
        delay_ns=20_000_001, jitter_ns=3_000_000, delay_correlation=0.25, loss=0.01,
        reorder=0.2, reorder_correlation=0.3, reorder_gap=5, duplicate=0.02, duplicate_correlation=0.4,
        corrupt=0.03, corrupt_correlation=0.5, ecn=True, seed=12345678901234567890, ordered=False,
        distribution="paretonormal",
    ),
    "bursts": Impairments(
        loss=GilbertElliott(0.01, 0.3, 0.9, 0.001), slot=Slot(1_000_000, 3_000_000, 5, 9000), distribution="normal"
    ),
    "four states": Impairments(
        delay_ns=10_000_000_000, loss=FourState(0.1, 0.2, 0.3, 0.4, 0.05), seed=7, distribution="pareto"
    ),
}  # fmt: skip


def half_a_millisecond(rate_bits: int) -> LinkPace:
    """The setting with 38 bytes of overhead, and the burst of then."""
    burst = max(1514, -(-rate_bits // 16_000))
    rate = -(-rate_bits // 8)
    return LinkPace(rate, min(by_hand.MAX32, round(burst * 1e9 / rate / 64)), 0, 38)


def kinds() -> Iterator[tuple[str, bytes, bytes]]:
    plain = LinkPace(2_500_000, 7813, 0, 38)
    yield "root", htb.add_root(9), by_hand.add_root(9)
    yield "class", htb.set_class(9, plain, htb.ADD), by_hand.add_class(9, plain)
    yield "leaf", htb.set_leaf(9, LEAVES[1], 0, htb.PUT), by_hand.add_leaf(9, LEAVES[1], 0)
    changed = htb.set_leaf(9, LEAVES[0], 123_456), by_hand.change_leaf(9, LEAVES[0], 123_456)
    yield "leaf changed", *changed
    yield "root deleted", htb.delete_root(9), by_hand.delete_root(9, by_hand.ROOT)
    yield "class read", htb.read_class(9), by_hand.read_class(9)
    yield "leaf read", htb.read_leaf(9, LEAVES[0]), by_hand.read_leaf(9, LEAVES[0])
    delayed = NetemState(Impairments(delay_ns=20_000_000), 1000)
    yield (
        "line with delay and table",
        netem.set_line(9, delayed, htb.ADD),
        by_hand.add_line(9, delayed),
    )
    yield "line read", netem.read(9), by_hand.read_line(9)
    yield "line deleted", htb.delete_root(9, LINE_HANDLE), by_hand.delete_root(9, by_hand.LINE)
    listed = encode(htb.traffic_control(9, 0, 0), RTM_GETQDISC, NLM_F_DUMP)
    yield "disciplines listed", listed, by_hand.list_disciplines(9)
    settings = {
        "class changed": plain,
        "class charged": LinkPace(1310, 1, 65_500, 0),
        "class of 64 bits": LinkPace(50_000_000_000, 7813),
        "charged 1 ms": charge_of(1_000_000),
        "charged 50 s": charge_of(LONGEST_NS),
        "eased": charge_for(30_000_000, 9_000_000, 38),
        **{
            f"class {rate}": half_a_millisecond(rate)
            for rate in (8, 100_000, 34_359_738_352, 34_359_738_360, 34_400_000_000, 400_000_000_000)
        },
    }  # fmt: skip
    for name, setting in settings.items():
        yield name, htb.set_class(9, setting), by_hand.change_class(9, setting)
    for name, impairments in LINES.items():
        held = NetemState(impairments, 4096)
        short = netem.set_line(9, held, with_table=False)
        yield f"line with {name}", short, by_hand.change_line(9, held, with_table=False)
        yield f"line with {name} and table", netem.set_line(9, held), by_hand.change_line(9, held)


@pytest.mark.parametrize(("name", "ours", "theirs"), list(kinds()), ids=lambda each: each if isinstance(each, str) else "")  # fmt: skip
def test_each_kind_of_message_of_traffic_control(name: str, ours: bytes, theirs: bytes) -> None:
    digested = name.endswith("table")
    for message in (ours, theirs):
        short = hashlib.sha256(message).hexdigest() if digested else message.hex()
        assert short == RECORDED["kinds"][name]


def test_no_recorded_kind_is_left_out() -> None:
    assert {name for name, *_ in kinds()} == RECORDED["kinds"].keys()
    assert NETWORK.keys() == RECORDED["network"].keys()


@pytest.mark.parametrize("rate", [1, 8, 100_000, 1_000_000, 48_448_000, 1_999_999_999, 2_000_000_000, 10**10, 4 * 10**11])  # fmt: skip
def test_rates_of_any_size_are_set_as_by_hand(rate: int) -> None:
    assert pace(rate, 38) == by_hand.pace(rate, 38)


class Said(Exception):
    """Raised in the place of an answer."""


class Recorder:
    """In the place of a channel's socket."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        raise Said


def said(act: Callable[[NetlinkChannel], object]) -> bytes:
    """The first message of ``act``."""
    with NetlinkChannel() as channel:
        real, channel._socket = channel._socket, Recorder()  # type: ignore[assignment]
        real.close()
        with pytest.raises(Said):
            act(channel)
        (message,) = channel._socket.sent  # type: ignore[attr-defined]
        channel._socket = real
    return bytes(message)


@contextmanager
def descriptor_77() -> Iterator[None]:
    """For a ``with`` block, namespaces are opened as the descriptor that was recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "opened", lambda _: nullcontext(77))
        yield


def with_descriptor(
    act: Callable[[NetlinkChannel], object],
) -> Callable[[NetlinkChannel], object]:
    return descriptor_77()(act)


ROUTE = SubnetRoute(
    {"family": 2, "dst_len": 24, "src_len": 0, "tos": 0, "table": 254, "proto": 2, "scope": 253, "type": 1, "flags": 0},
    (("RTA_DST", "10.77.0.0"), ("RTA_OIF", 7), ("RTA_PREFSRC", "10.77.0.2"), ("RTA_TABLE", 254)),
    TcpSettings(None, None),
)  # fmt: skip
NETWORK: dict[str, Callable[[NetlinkChannel], object]] = {
    "all_devices": devices.all_devices,
    "device": lambda channel: devices.device(channel, 7),
    "find": lambda channel: devices.find(channel, "uplink0"),
    "add_bridge": lambda channel: devices.add_bridge(channel, "switch"),
    "add_ifb": lambda channel: devices.add_ifb(channel, "nwifb7"),
    "add_veth": with_descriptor(lambda c: devices.add_veth(c, "uplink0", "data", "elsewhere")),
    "move": with_descriptor(lambda channel: devices.move(channel, 7, "elsewhere")),
    "namespace number": with_descriptor(lambda c: devices._namespace_number(c, "elsewhere")),
    "delete": lambda channel: devices.delete(channel, 7),
    "set_up": lambda channel: devices.set_up(channel, 7),
    "set_master": lambda channel: devices.set_link(channel, 7, MASTER=3),
    "set_bridge": lambda channel: bridges.prune(channel, None, 7),
    "flood_nothing": lambda channel: devices.set_port(channel, 7, UNICAST_FLOOD=0),
    "silence": lambda channel: devices.silence(channel, 7),
    "set_alias": lambda channel: devices.set_link(channel, 7, IFALIAS="narrows 1234"),
    "set_mac": lambda channel: devices.set_link(channel, 7, ADDRESS=MAC),
    "set_segments": lambda channel: devices.set_link(channel, 7, GSO_MAX_SEGS=4),
    "add_address": lambda channel: devices.add_address(channel, 7, "10.77.0.2", 24),
    "no_router": lambda channel: devices.set_port(channel, 7, MULTICAST_ROUTER=0),
    "add_forwarding": lambda channel: bridges.add_forwarding(channel, 7, MAC),
    "add_neighbour": lambda channel: bridges.add_neighbour(channel, 7, "10.77.0.3", MAC),
    "subnet_routes": lambda channel: devices.subnet_routes(channel, 7),
    "set_route": lambda channel: devices.set_route(channel, ROUTE, TcpSettings("cubic", 200, True)),
    "set_route back": lambda channel: devices.set_route(channel, ROUTE, TcpSettings(None, None)),
    "interfaces": devices.interfaces,
    "redirect": lambda channel: htb.redirect(channel, 7, 9),
    "redirect filter": lambda channel: channel.request(
        htb.filter_to(7, 9), htb.RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL
    ),
    "undo_redirect": lambda channel: htb.undo_redirect(channel, 7),
    "passed": lambda channel: htb.passed(channel, 7),
    "connections 2": lambda channel: channel.dump_raw(
        connections.query(socket.AF_INET), SOCK_DIAG_BY_FAMILY
    ),
    "connections 10": lambda channel: channel.dump_raw(
        connections.query(socket.AF_INET6), SOCK_DIAG_BY_FAMILY
    ),
}


@pytest.mark.parametrize("name", NETWORK)
def test_messages_that_build_a_network(name: str) -> None:
    assert said(NETWORK[name]).hex() == RECORDED["network"][name]


def test_what_a_kernel_answered_is_read_as_tc_read_it() -> None:
    """Once with a queue that was full: ``tc`` said 2 packets of 2000 B, 5 dropped, 5000 B in 5 waiting."""
    slow, fast = (bytes.fromhex(RECORDED["answers"][name]) for name in ("slow", "fast"))
    counters = htb.decode_counters(slow)
    assert counters._replace(debt_ns=0) == htb.ClassCounters(2000, 2, 5000, 5, 5, 0, 12_500)
    assert 40_000_000 < counters.debt_ns < 60_000_000  # 667 000 ticks, a moment later
    assert htb.decode_counters(fast) == htb.ClassCounters(12_000, 12, 0, 0, 0, 0, 50_000_000_000)
    held = htb.decode_class(slow)
    assert held == htb.HeldClass(LinkPace(12_500, 1_892_500, 0, 24), 12_500, 1_892_500, 60_000)
    assert htb.decode_class(fast).ceil_bytes == 50_000_000_000


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_read_as_it_was_told(name: str) -> None:
    told = netem.NetemState(LINES[name], 4096)
    held = netem.decode(netem.set_line(9, told))
    assert held is not None and netem.same(told, held)
    assert not netem.same(told._replace(limit_packets=4097), held)
    assert netem.decode(htb.set_leaf(9, LEAVES[0], 1)) is None


def test_structures_of_the_same_length_are_told_apart() -> None:
    read = AttributeReader(
        tcmsg, "TCA_OPTIONS.TCA_HTB_RATE64.value", "TCA_OPTIONS.TCA_HTB_CEIL64.value"
    )

    def message(name: str) -> bytes:
        options = tree((name, 7))
        return encode(htb.traffic_control(1, 2, 3, "htb", options), 40, NLM_F_ACK)

    first, second = message("TCA_HTB_RATE64"), message("TCA_HTB_CEIL64")
    assert len(first) == len(second)
    for _ in range(2):
        assert read(first) == (7, None) and read(second) == (None, 7)


def test_numbers_of_a_structure_are_put_in_anew_and_texts_are_not() -> None:
    def message(index: int, name: str) -> bytes:
        return encode(devices.link(("IFLA_IFNAME", name), index=index), RTM_GETLINK, 0)

    first, second = message(7, "veth"), message(0x01020304, "veth")
    assert first.replace((7).to_bytes(4, "little"), bytes([4, 3, 2, 1])) == second != first
    assert first.replace(b"veth", b"htev") == message(7, "htev") == message(7, "htev")
