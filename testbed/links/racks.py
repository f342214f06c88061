"""Racks: some nodes behind a bridge of their own, whose one cable to the core they share.

A rack's bridge stands in a namespace where no firewall of the host looks at bridged frames: the switch's own
where nodes are namespaces, one made for the racks where they are containers. There the members' ports
move from the engine's bridge to the rack's, and back when it is undone.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from testbed.fabric.base import Cable, Interface
from testbed.links import devices, multicast, namespaces
from testbed.links.channel import Channel, KernelRefused
from testbed.links.neighbours import add_forwarding
from testbed.links.wiring import RackPlan, Racks, RackWires


def build(plan: RackPlan) -> Racks:
    """Make everything. Raises OSError; what was made by then is for ``remove``."""
    home = _own_namespace(plan.netns) if plan.own else namespaces.path_of(plan.netns)
    racks = Racks({}, {})
    with Channel(home) as inner:
        if plan.own:
            devices.set_up(inner, 1)
        for rack in plan.racks:
            _build_rack(plan.alias, rack, home, inner, racks)
    return racks


def remove(plan: RackPlan) -> list[str]:
    """Put the members' ports back and remove what was made; returns what could not be, in words."""
    home = namespaces.path_of(plan.netns)
    steps: list[Callable[[], object]] = [
        partial(_remove_rack, plan.alias, rack, home) for rack in plan.racks
    ]
    if plan.own:
        steps.append(lambda: namespaces.remove(plan.netns))
    failures = []
    for step in steps:
        try:
            step()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                failures.append(str(error))
    return failures


def _own_namespace(name: str) -> str:
    path = namespaces.make(name)
    with namespaces.inside(path), suppress(OSError):  # a container may not be allowed to
        namespaces.without_ipv6("all", "default")
        namespaces.settle()
    return path


def _build_rack(alias: str, rack: RackWires, home: str, inner: Channel, made: Racks) -> None:
    core_netns = _core(rack)
    with Channel(core_netns) as outer:
        first = next(iter(rack.members.values())).port
        core = devices.device(outer, first.index).master
        if not core:
            raise OSError(
                errno.ENODEV, f"the port {first.name!r} of rack {rack.name!r} has no bridge"
            )
        bridge = devices.add_bridge(inner, rack.bridge)
        _connect(inner, bridge.index, None)
        multicast.prune(home, bridge.index)
        port = devices.add_veth(outer, rack.port, rack.uplink, home)
        devices.set_alias(outer, port.index, alias)
        _connect(outer, port.index, core)
        uplink = _found(inner, rack.uplink)
        _connect(inner, uplink.index, bridge.index)
        made.cables[rack.name] = Cable(
            Interface(home, uplink.index, rack.uplink),
            Interface(core_netns, port.index, rack.port),
        )
        multicast.no_router(inner, uplink.index)
        multicast.no_router(outer, port.index)
        switch_mac = devices.device(outer, core).mac
        for name, member in rack.members.items():
            _yield_address(outer, member.port.index, switch_mac)
            index = _move(member.port, outer, (core_netns, home), inner, bridge.index)
            made.ports[name] = Interface(home, index, member.port.name)
            _direct(member.nic, (inner, index), (outer, port.index))


def _yield_address(channel: Channel, port: int, switch_mac: str) -> None:
    """A bridge may have the address of one of its ports; elsewhere that port would keep what is for the bridge."""
    if devices.device(channel, port).mac == switch_mac:
        last = int(switch_mac[-2:], 16) ^ 0xFF
        devices.set_mac(channel, port, f"{switch_mac[:-2]}{last:02x}")


def _direct(nic: Interface, own: tuple[Channel, int], shared: tuple[Channel, int]) -> None:
    """Both bridges know where a member is; the rack's sends what it knows nothing of to the core alone."""
    with Channel(nic.netns) as inside:
        mac = devices.device(inside, nic.index).mac
    add_forwarding(*own, mac)
    devices.flood_nothing(*own)
    add_forwarding(*shared, mac)


def _remove_rack(alias: str, rack: RackWires, home: str) -> None:
    """The port at the core tells by its master where the members belong."""
    core_netns = _core(rack)
    with Channel(core_netns) as outer, Channel(home) as inner:
        port = devices.find(outer, rack.port)
        if port is not None and port.alias == alias:
            for member in rack.members.values():
                if devices.find(inner, member.port.name) is not None:
                    _move(member.port, inner, (home, core_netns), outer, port.master)
            devices.delete(outer, port.index)
        bridge = devices.find(inner, rack.bridge)
        if bridge is not None:
            devices.delete(inner, bridge.index)


def _move(
    port: Interface,
    source: Channel,
    ways: tuple[str | None, str | None],
    target: Channel,
    bridge: int,
) -> int:
    """Plug a port into ``bridge``, in another namespace if need be; returns its index there."""
    index = _found(source, port.name).index
    if ways[0] != ways[1]:
        devices.move(source, index, ways[1] or "/proc/thread-self/ns/net")
        index = _found(target, port.name).index
    _connect(target, index, bridge)
    return index


def _connect(channel: Channel, index: int, bridge: int | None) -> None:
    """Switch a device on, plugged into a bridge where one is given, and have it say nothing of its own."""
    devices.silence(channel, index)
    if bridge is not None:
        devices.set_master(channel, index, bridge)
    devices.set_up(channel, index)


def _core(rack: RackWires) -> str | None:
    return next(iter(rack.members.values())).port.netns


def _found(channel: Channel, name: str) -> devices.Device:
    found = devices.find(channel, name)
    if found is None:
        raise KernelRefused(errno.ENODEV, f"there is no device {name!r}")
    return found
