"""Every shaped direction of a session: installed once, changed in place, read back, kept for the
next run, removed at the end.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from testbed.errors import LinkError, MachineError
from testbed.links.agent.protocol import LinkSettings
from testbed.links.capabilities import needs_of_lines, probe
from testbed.links.netem_stage import NetemStage
from testbed.links.network import devices
from testbed.links.network.devices import SubnetRoute, TcpSettings, set_route, shape_route
from testbed.links.network.namespaces import setting
from testbed.links.network.wiring import DeviceKey, Placement, QueuePoint, hops
from testbed.links.tc import htb
from testbed.links.tc.htb import QdiscDevice, RootQdisc
from testbed.links.tc.netlink import KernelRefused, NetlinkChannel, undone
from testbed.links.tc.parameters import ALIAS, LEAVES, TICK_NS, LinkPace, pace
from testbed.scenario.link_state import LinkDirection, LinkState
from testbed.topology import Cable

CLOSED_RATE_BITS = 1_000_000
"""Rate of a class before t0 when its link begins with an outage; its queue takes nothing."""

_REST_NS = 5_000_000
_GONE = (errno.ENODEV, errno.ENOENT, errno.ESRCH, errno.EINVAL, errno.ENETDOWN)
"""Errors that say that something has vanished, or its device has, or is switched off."""


class ShapedQueue(RootQdisc):
    """The queue and the rate of a link direction. Not thread-safe."""

    handle = htb.ROOT_HANDLE

    def __init__(self, end: LinkDirection, where: QdiscDevice) -> None:
        super().__init__(end, where)
        self.leaf = LEAVES[0]
        self.zero = htb.ClassCounters(0, 0, 0, 0, 0, 0)
        """The counters when the end was last installed: what they count from."""
        self._flushed_packets = 0
        self._direct_before = 0
        self._read = htb.read_class(where.index)
        # Each form is encoded once by pyroute2, which no replay shall wait for.
        for rate_bytes in (1, htb.MAX32):
            self.class_message(LinkPace(rate_bytes, 1))
        self.limit_message(0)
        htb.read_leaf(where.index, self.leaf)

    def install(self, shape: LinkState) -> None:
        """Bring the device to ``shape``: a new tree the first time, in place afterwards.

        A queue that still holds packets, or a class that must not send yet, is what an earlier run
        left: then the tree is made anew. Raises LinkError for a root that is not ours.
        """
        setting, limit = _installable(shape)
        if self.installed and self._at_rest():
            self.send(self.limit_message(limit), self.class_message(setting))
        else:
            self._make_room()
            self._make(shape)
        self.zero, self._flushed_packets = self.read(), 0
        self._direct_before = self._direct()

    def _make(self, shape: LinkState) -> None:
        index, (setting, limit) = self.where.index, _installable(shape)
        try:
            self.send(htb.add_root(index))
            self.installed = True
            self.send(
                htb.set_class(index, setting, htb.ADD),
                htb.set_leaf(index, self.leaf, limit, htb.PUT),
            )
            self._lead_in()
        except KernelRefused as error:
            raise self._mismatch(describe(shape), f"nothing: {error.strerror}") from error

    def class_message(self, setting: LinkPace) -> bytes:
        """The prepared message that sets the class."""
        return htb.set_class(self.where.index, setting)

    def limit_message(self, limit_bytes: int) -> bytes:
        """The prepared message that sets the queue's length."""
        return htb.set_leaf(self.where.index, self.leaf, limit_bytes)

    def flush(self) -> None:
        """Throw away what waits and take nothing in, until the queue's length is set again."""
        self.send(self.limit_message(0))
        waiting = self.read().backlog_packets
        self.leaf = LEAVES[1] if self.leaf == LEAVES[0] else LEAVES[0]
        self.send(htb.set_leaf(self.where.index, self.leaf, 0, htb.PUT))
        self._flushed_packets += waiting

    def read(self) -> htb.ClassCounters:
        """The class's counters now."""
        return htb.decode_counters(self._channel.ask(self._read))

    def held_limit(self) -> int:
        """The queue's length that the kernel holds now, bytes. Raises KernelRefused."""
        return htb.decode_limit(self._channel.ask(htb.read_leaf(self.where.index, self.leaf)))

    def drops(self, counters: htb.ClassCounters) -> int:
        """Packets that the emulated queue has dropped since the end was installed."""
        return counters.drops - self.zero.drops + self._flushed_packets

    def direct_packets(self) -> int:
        """Packets that went past the class since the end was installed; there must be none."""
        return self._direct() - self._direct_before

    def verify(self, shape: LinkState) -> dict[str, Any]:
        """Read everything back. Returns what is held; raises LinkError where it differs."""
        wanted, limit = _installable(shape)
        actual = htb.decode_class(self._channel.ask(self._read))
        qdiscs = {each.parent: each for each in htb.qdiscs(self._channel, self.where.index)}
        root, leaf = qdiscs.get(htb.AT_ROOT), qdiscs.get(htb.CLASS)
        values = {
            "device": self.where.name,
            "netns": self.where.netns,
            "kind": f"{root.kind if root else None}+{leaf.kind if leaf else None}",
            "rate_bits": actual.pace.rate_bytes * 8,
            "burst_bytes": round(actual.pace.burst_ticks * TICK_NS * actual.pace.rate_bytes / 1e9),
            "limit_bytes": leaf.limit_bytes if leaf else None,
            "default_class": root.default_minor if root else None,
            "quantum_bytes": actual.quantum_bytes,
            "overhead_bytes": actual.pace.overhead_bytes,
        }
        right = (
            values["kind"] == "htb+bfifo"
            and actual.pace == wanted
            and (actual.ceil_bytes, actual.ceil_burst_ticks)
            == (wanted.rate_bytes, wanted.burst_ticks)
            and values["limit_bytes"] == limit
            and values["default_class"] == htb.CLASS & 0xFFFF
        )
        if not right:
            raise self._mismatch(describe(shape), ", ".join(f"{k} {v}" for k, v in values.items()))
        return values

    def _at_rest(self) -> bool:
        counters = self.read()
        return not counters.backlog_bytes and counters.debt_ns < _REST_NS

    def _direct(self) -> int:
        root = self._root()
        return (root.direct_packets or 0) if root else 0


def describe(shape: LinkState) -> str:
    """A shape in words, for messages."""
    if not shape.rate_bits:
        return f"an outage ({'packets dropped' if shape.drop else 'packets wait'})"
    overhead = (
        f", each packet charged {shape.overhead_bytes} B more" if shape.overhead_bytes else ""
    )
    return f"{shape.rate_bits} bit/s with a queue of {shape.queue_bytes} B{overhead}"


def _installable(shape: LinkState) -> tuple[LinkPace, int]:
    """Class and queue length to install. An outage itself is held by the replay, from t0 on."""
    rate, limit = (shape.rate_bits, shape.queue_bytes) if shape.rate_bits else (CLOSED_RATE_BITS, 0)
    return pace(rate, shape.overhead_bytes), limit


class Shaper:
    """Not thread-safe; a replay borrows ``ends`` and ``lines`` while it runs."""

    def __init__(self) -> None:
        self.ends: dict[LinkDirection, ShapedQueue] = {}
        self.lines: dict[LinkDirection, NetemStage] = {}
        self.shapes: dict[LinkDirection, LinkState] = {}
        self.settings = LinkSettings(0)
        self.others: set[DeviceKey] = set()
        """Devices that TCP sends through, and that are at no link's end."""
        self._intermediates: dict[DeviceKey, DeviceKey] = {}
        self._hops: dict[LinkDirection, Placement] = {}
        self._segments_before: dict[DeviceKey, int] = {}
        self._routes_before: dict[DeviceKey, list[SubnetRoute]] = {}

    def prepare(
        self,
        cables: Mapping[str, Cable],
        shapes: Mapping[LinkDirection, LinkState],
        settings: LinkSettings,
        impaired: Collection[LinkDirection] = (),
    ) -> dict[str, Any]:
        """Bring every end to its shape and check it. Returns what the kernel holds, read back.

        Raises LinkError for a link that is not as asked, MachineError for what the kernel does not
        know.
        """
        delayed = {end for end, shape in shapes.items() if shape.impairments or end in impaired}
        _require(delayed, shapes)
        self.settings = settings
        requested = TcpSettings(settings.congestion, settings.rto_min_ms, settings.ecn)
        for spot in (*_talking(cables), *self.others):
            self._limit_segments(spot, settings.segments)
            self._routes_before.setdefault(spot, shape_route(*spot, requested))
        places = {
            end: hops(end, cables[end.link], settings.at.get(end.link, "nic")) for end in shapes
        }
        self._clear(places, delayed)
        for end, shape in shapes.items():
            self._install(end, shape, end in delayed)
        self.shapes = dict(shapes)
        return {
            "links": [self._read_back(end, cables[end.link], settings) for end in shapes],
            "gso_max_segs": settings.segments,
            "rto_min_ms": settings.rto_min_ms,
            "tcp_ecn": settings.ecn,
        }

    def remove(self) -> list[str]:
        """Undo all of it; returns what could not be undone, in words."""
        steps: list[Callable[[], None]] = [end.remove for end in self.ends.values()]
        steps += [line.remove for line in self.lines.values()]
        steps += [
            partial(_at, netns, devices.delete, index)
            for netns, index in self._intermediates.values()
        ]
        steps += [
            partial(_at, netns, devices.set_link, index, GSO_MAX_SEGS=count)
            for (netns, index), count in self._segments_before.items()
        ]
        steps += [
            partial(_at, netns, set_route, route, route.settings)
            for (netns, _), routes in self._routes_before.items()
            for route in routes
        ]
        failures = undone(steps, *_GONE)
        before = (self._intermediates, self._segments_before, self._routes_before)
        for kept in (self.ends, self.lines, *before):
            kept.clear()
        return failures

    def _clear(self, places: dict[LinkDirection, Placement], delayed: set[LinkDirection]) -> None:
        """Take away what an earlier run had elsewhere: all of it, before anything is put there."""
        moved = {end for end in self.ends if places.get(end) != self._hops[end]}
        for end in moved:
            self.ends.pop(end).remove()
        for end in self.lines.keys() - (delayed - moved):
            self.lines.pop(end).remove()
        self._hops = places

    def _install(self, end: LinkDirection, shape: LinkState, delayed: bool) -> None:
        placement = self._hops[end]
        if end not in self.ends:
            self.ends[end] = ShapedQueue(end, self._where(end, placement.queue))
        self.ends[end].install(shape)
        if delayed:
            if end not in self.lines:
                self.lines[end] = NetemStage(end, self._where(end, placement.line))
            self.lines[end].install(shape)

    def _where(self, end: LinkDirection, hop: QueuePoint) -> QdiscDevice:
        """The device of a hop, made if need be. Raises LinkError for somebody else's."""
        netns, index, name = hop.interface.netns, hop.interface.index, hop.device
        if hop.passing == "leaving":
            return QdiscDevice(netns, index, name)
        spot = (netns, index)
        if spot not in self._intermediates:
            self._intermediates[spot] = (netns, _make(end, netns, name).index)
        return QdiscDevice(netns, self._intermediates[spot][1], name, redirect=index)

    def _limit_segments(self, spot: DeviceKey, segments: int) -> None:
        with NetlinkChannel(spot[0]) as channel:
            before = devices.device(channel, spot[1]).segments
            self._segments_before.setdefault(spot, before)
            devices.set_link(channel, spot[1], GSO_MAX_SEGS=segments)
            actual = devices.device(channel, spot[1]).segments
        if actual != segments:
            raise MachineError(
                f"device {spot[1]} in {spot[0] or 'the own namespace'} should take bundles of "
                f"{segments} frames, but the kernel holds {actual}"
            )

    def _read_back(
        self, end: LinkDirection, cable: Cable, settings: LinkSettings
    ) -> dict[str, Any]:
        actual = self.ends[end].verify(self.shapes[end])
        sender = cable.nic.netns if end.direction == "up" else cable.port.netns
        return {
            "link": end.link,
            "direction": end.direction,
            "at": settings.at.get(end.link, "nic") if end.direction == "up" else "network",
            **actual,
            "line": self.lines[end].verify() if end in self.lines else None,
            "gso_max_segs": settings.segments,
            "congestion": settings.congestion or setting("net.ipv4.tcp_congestion_control", sender),
            "tcp_ecn": settings.ecn,
            "tcp_metrics_saved": setting("net.ipv4.tcp_no_metrics_save", sender) == "0",
        }


def _require(delayed: Collection[LinkDirection], shapes: Mapping[LinkDirection, LinkState]) -> None:
    """Raises MachineError, before anything is made, where the kernel has no delay lines."""
    if not delayed:
        return
    seeded = [end for end in delayed if shapes[end].impairments.seed is not None]
    missing = probe().missing(needs_of_lines(list(delayed), seeded))
    if missing is not None:
        raise missing


def _talking(cables: Mapping[str, Cable]) -> Iterator[DeviceKey]:
    """The devices that TCP sends through: every node's interface, and the switch's own."""
    bridges: set[DeviceKey] = set()
    for cable in cables.values():
        yield cable.nic.netns, cable.nic.index
        with NetlinkChannel(cable.port.netns) as channel:
            master = devices.device(channel, cable.port.index).master
        if master:
            bridges.add((cable.port.netns, master))
    yield from bridges


def _at(netns: str | None, action: Callable[..., None], *given: object, **values: int) -> None:
    with NetlinkChannel(netns) as channel:
        action(channel, *given, **values)


def _make(end: LinkDirection, netns: str | None, name: str) -> devices.Device:
    with NetlinkChannel(netns) as channel:
        device = devices.find(channel, name)
        if device is not None and device.alias != ALIAS:
            raise LinkError(
                end.link,
                end.direction,
                requested=f"an intermediate device {name!r} of our own",
                actual="somebody else's device of that name",
            )
        device = device or devices.add_ifb(channel, name)
        devices.set_link(channel, device.index, IFALIAS=ALIAS)
        devices.silence(channel, device.index)
        devices.set_up(channel, device.index)
        return device
