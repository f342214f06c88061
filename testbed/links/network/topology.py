"""Nodes as network namespaces: a switch, a cable from every node to it, and a control network
beside it; and racks.

The data switch and the control network have namespaces of their own: no firewall of the host sees
training traffic, and neither do nodes reach the host's services nor the host's processes the nodes.
Nothing here has IPv6: its own chatter would be counted as traffic.

A rack is some nodes behind a bridge of their own, whose one cable to the core they share. Its
bridge stands in a namespace where no firewall of the host looks at bridged frames: the switch's own
where nodes are namespaces, one made for the racks where they are containers. There the members'
ports move from the engine's bridge to the rack's, and back when it is undone.
"""

from __future__ import annotations

import errno
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from testbed.links.network import bridges, devices, namespaces
from testbed.links.network.bridges import acquaint, add_forwarding
from testbed.links.network.wiring import (
    CONTROL_NIC,
    NIC,
    SWITCH,
    NodeWires,
    RackPlan,
    Racks,
    RackWires,
    Resident,
    TopologyPlan,
)
from testbed.links.tc.netlink import NetlinkChannel, undone
from testbed.topology import Cable, Interface


def build(plan: TopologyPlan) -> dict[str, tuple[Interface, Interface]]:
    """Make everything; returns each node's data NIC and its port at the switch. Raises OSError."""
    switch, middle = map(_make_namespace, (plan.switch_netns, plan.control_netns))
    with NetlinkChannel(switch) as inner, NetlinkChannel(middle) as host:
        data = devices.add_bridge(inner, SWITCH).index
        _address(inner, data, plan.switch_address, plan.prefix_bits)
        bridges.prune(inner, switch, data)
        control = devices.add_bridge(host, plan.control_bridge).index
        _address(host, control, plan.control_host, plan.prefix_bits)
        wired = {
            node.name: _build_node(plan, node, (switch, inner, data), (host, control))
            for node in plan.nodes
        }
        residents = [Resident(switch, data, plan.switch_address)]
        for node, (nic, _) in zip(plan.nodes, wired.values(), strict=True):
            residents.append(Resident(nic.netns, nic.index, node.data_address))
        acquaint(residents)
        return wired


def remove(plan: TopologyPlan) -> list[str]:
    """Remove whatever of a plan there is; returns what could not be removed, in words.

    Cables go before namespaces: a namespace that a process is still in lives on, its cables must
    not.
    """
    switch, middle = map(namespaces.path_of, (plan.switch_netns, plan.control_netns))
    return undone(
        [
            partial(remove_devices, switch, [node.port for node in plan.nodes], None),
            partial(remove_devices, middle, [node.control_port for node in plan.nodes], None),
            *(partial(namespaces.remove, node.netns) for node in plan.nodes),
            partial(namespaces.remove, plan.switch_netns),
            partial(namespaces.remove, plan.control_netns),
        ]
    )


def remove_devices(netns: str | None, names: list[str], alias: str | None) -> list[str]:
    """Delete devices of these names (and this alias, if any); returns which there were."""
    if netns is not None and not Path(netns).exists():
        return []
    removed = []
    with NetlinkChannel(netns) as channel:
        for name in names:
            device = devices.find(channel, name)
            if device is not None and alias in (None, device.alias):
                devices.delete(channel, device.index)
                removed.append(name)
    return removed


def _build_node(
    plan: TopologyPlan,
    node: NodeWires,
    switch: tuple[str, NetlinkChannel, int],
    host: tuple[NetlinkChannel, int],
) -> tuple[Interface, Interface]:
    path = _make_namespace(node.netns)
    switch_path, inner, bridge = switch
    port = devices.add_veth(inner, node.port, NIC, path)
    devices.set_link(inner, port.index, MASTER=bridge)
    devices.set_up(inner, port.index)
    channel, control = host
    outer = devices.add_veth(channel, node.control_port, CONTROL_NIC, path)
    devices.set_link(channel, outer.index, MASTER=control)
    devices.set_up(channel, outer.index)
    with NetlinkChannel(path) as own:
        nic, control_nic = (devices.named(own, name) for name in (NIC, CONTROL_NIC))
        _address(own, nic.index, node.data_address, plan.prefix_bits)
        add_forwarding(inner, port.index, nic.mac)
        _address(own, control_nic.index, node.control_address, plan.prefix_bits)
    return Interface(path, nic.index, NIC), Interface(switch_path, port.index, node.port)


def _address(channel: NetlinkChannel, index: int, address: str, prefix_bits: int) -> None:
    """Give a device an address and switch it on."""
    devices.add_address(channel, index, address, prefix_bits)
    devices.set_up(channel, index)


def _make_namespace(name: str, *, contained: bool = False) -> str:
    """``contained``: by a container, which may not be allowed to settle it."""
    path = namespaces.make(name)
    with namespaces.inside(path), suppress(OSError) if contained else nullcontext():
        namespaces.settle()
    with NetlinkChannel(path) as channel:
        devices.set_up(channel, 1)
    return path


def build_racks(plan: RackPlan) -> Racks:
    """Make everything. Raises OSError; what was made by then is for ``remove_racks``."""
    if plan.own:
        home = _make_namespace(plan.netns, contained=True)
    else:
        home = namespaces.path_of(plan.netns)
    racks = Racks({}, {})
    with NetlinkChannel(home) as inner:
        for rack in plan.racks:
            _build_rack(plan.alias, rack, home, inner, racks)
    return racks


def remove_racks(plan: RackPlan) -> list[str]:
    """Put the members' ports back and remove what was made; returns what could not be, in words."""
    home = namespaces.path_of(plan.netns)
    steps = [partial(_remove_rack, plan.alias, rack, home) for rack in plan.racks]
    own = [partial(namespaces.remove, plan.netns)] if plan.own else []
    return undone([*steps, *own], errno.ENOENT, errno.ENODEV)


def _build_rack(
    alias: str, rack: RackWires, home: str, inner: NetlinkChannel, built: Racks
) -> None:
    first = _first_port(rack)
    core_netns = first.netns
    with NetlinkChannel(core_netns) as outer:
        core = devices.device(outer, first.index).master
        if not core:
            raise OSError(
                errno.ENODEV, f"the port {first.name!r} of rack {rack.name!r} has no bridge"
            )
        bridge = devices.add_bridge(inner, rack.bridge)
        _connect(inner, bridge.index, None)
        bridges.prune(inner, home, bridge.index)
        port = devices.add_veth(outer, rack.port, rack.uplink, home)
        devices.set_link(outer, port.index, IFALIAS=alias)
        _connect(outer, port.index, core)
        uplink = devices.named(inner, rack.uplink)
        _connect(inner, uplink.index, bridge.index)
        built.cables[rack.name] = Cable(
            Interface(home, uplink.index, rack.uplink),
            Interface(core_netns, port.index, rack.port),
        )
        # Reports of who joins (IGMP version 3) go everywhere, so that it is known of every port.
        devices.set_port(inner, uplink.index, MULTICAST_ROUTER=0)
        devices.set_port(outer, port.index, MULTICAST_ROUTER=0)
        switch_mac = devices.device(outer, core).mac
        for name, member in rack.members.items():
            _yield_address(outer, member.port.index, switch_mac)
            index = _move(member.port, outer, (core_netns, home), inner, bridge.index)
            built.ports[name] = Interface(home, index, member.port.name)
            _direct(member.nic, (inner, index), (outer, port.index))


def _yield_address(channel: NetlinkChannel, port: int, switch_mac: str) -> None:
    """Change a port's address that is also the bridge's: elsewhere it would keep packets."""
    if devices.device(channel, port).mac == switch_mac:
        last = int(switch_mac[-2:], 16) ^ 0xFF
        devices.set_link(channel, port, ADDRESS=f"{switch_mac[:-2]}{last:02x}")


def _direct(
    nic: Interface, own: tuple[NetlinkChannel, int], shared: tuple[NetlinkChannel, int]
) -> None:
    """Tell both bridges where a member is; the rack's sends the unknown to the core alone."""
    with NetlinkChannel(nic.netns) as inside:
        mac = devices.device(inside, nic.index).mac
    add_forwarding(*own, mac)
    devices.set_port(*own, UNICAST_FLOOD=0)
    add_forwarding(*shared, mac)


def _remove_rack(alias: str, rack: RackWires, home: str) -> None:
    """The port at the core tells by its master where the members belong."""
    core_netns = _first_port(rack).netns
    with NetlinkChannel(core_netns) as outer, NetlinkChannel(home) as inner:
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
    source: NetlinkChannel,
    ways: tuple[str | None, str | None],
    target: NetlinkChannel,
    bridge: int,
) -> int:
    """Plug a port into ``bridge``, in another namespace if need be; returns its index there."""
    index = devices.named(source, port.name).index
    if ways[0] != ways[1]:
        devices.move(source, index, ways[1] or namespaces.OWN)
        index = devices.named(target, port.name).index
    _connect(target, index, bridge)
    return index


def _connect(channel: NetlinkChannel, index: int, bridge: int | None) -> None:
    """Switch a device on, silent, and plugged into a bridge where one is given."""
    devices.silence(channel, index)
    if bridge is not None:
        devices.set_link(channel, index, MASTER=bridge)
    devices.set_up(channel, index)


def _first_port(rack: RackWires) -> Interface:
    """One of the members' ports at the core; all are in the same namespace."""
    return next(iter(rack.members.values())).port
