"""Nodes as network namespaces: a switch, a cable from every node to it, and a control network beside it.

The data switch has a namespace of its own, so that no firewall of the host sees training traffic. The
control network ends in the host's namespace, where the run listens. Nothing here has IPv6: its own
chatter would be counted as traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from testbed.fabric.base import Interface
from testbed.links import devices, multicast, namespaces
from testbed.links.channel import Channel
from testbed.links.neighbours import acquaint, add_forwarding
from testbed.links.wiring import CONTROL_NIC, NIC, SWITCH, NodeWires, Resident, TopologyPlan


def build(plan: TopologyPlan) -> dict[str, tuple[Interface, Interface]]:
    """Make everything; returns each node's data NIC and its port at the switch. Raises OSError."""
    switch = _make_namespace(plan.switch_netns)
    with Channel(switch) as inner, Channel() as host:
        data = devices.add_bridge(inner, SWITCH)
        devices.add_address(inner, data.index, plan.switch_address, plan.prefix_bits)
        devices.set_up(inner, data.index)
        multicast.prune(switch, data.index)
        control = devices.add_bridge(host, plan.control_bridge)
        devices.set_alias(host, control.index, plan.alias)
        namespaces.without_ipv6(plan.control_bridge)
        devices.add_address(host, control.index, plan.control_host, plan.prefix_bits)
        devices.set_up(host, control.index)
        wired = {
            node.name: _build_node(plan, node, (switch, inner, data.index), (host, control.index))
            for node in plan.nodes
        }
        acquaint(
            [
                Resident(switch, data.index, plan.switch_address),
                *(
                    Resident(nic.netns, nic.index, node.data_address)
                    for node, (nic, _) in zip(plan.nodes, wired.values(), strict=True)
                ),
            ]
        )
        return wired


def remove(plan: TopologyPlan) -> list[str]:
    """Remove whatever of a plan there is; returns what could not be removed, in words.

    Cables go before namespaces: a namespace that a process is still in lives on, its cables must not.
    """
    failures: list[str] = []
    switch = namespaces.path_of(plan.switch_netns)
    steps: list[Callable[[], object]] = [
        lambda: remove_devices(switch, [node.port for node in plan.nodes], None),
        lambda: remove_devices(
            None, [*(node.control_port for node in plan.nodes), plan.control_bridge], plan.alias
        ),
        *(lambda name=node.netns: namespaces.remove(name) for node in plan.nodes),
        lambda: namespaces.remove(plan.switch_netns),
    ]
    for step in steps:
        try:
            step()
        except OSError as error:
            failures.append(str(error))
    return failures


def remove_devices(netns: str | None, names: list[str], alias: str | None) -> list[str]:
    """Delete devices of these names (and of this alias, where one is given); returns which there were."""
    if netns is not None and not Path(netns).exists():
        return []
    removed = []
    with Channel(netns) as channel:
        for name in names:
            found = devices.find(channel, name)
            if found is not None and alias in (None, found.alias):
                devices.delete(channel, found.index)
                removed.append(name)
    return removed


def _build_node(
    plan: TopologyPlan, node: NodeWires, switch: tuple[str, Channel, int], host: tuple[Channel, int]
) -> tuple[Interface, Interface]:
    path = _make_namespace(node.netns)
    switch_path, inner, bridge = switch
    port = devices.add_veth(inner, node.port, NIC, path)
    devices.set_master(inner, port.index, bridge)
    devices.set_up(inner, port.index)
    channel, control = host
    outer = devices.add_veth(channel, node.control_port, CONTROL_NIC, path)
    devices.set_alias(channel, outer.index, plan.alias)
    namespaces.without_ipv6(node.control_port)
    devices.set_master(channel, outer.index, control)
    devices.set_up(channel, outer.index)
    with Channel(path) as own:
        nic = _address(own, NIC, node.data_address, plan.prefix_bits)
        add_forwarding(inner, port.index, devices.device(own, nic).mac)
        _address(own, CONTROL_NIC, node.control_address, plan.prefix_bits)
    return Interface(path, nic, NIC), Interface(switch_path, port.index, node.port)


def _address(channel: Channel, name: str, address: str, prefix_bits: int) -> int:
    found = devices.find(channel, name)
    assert found is not None, f"{name} was made a moment ago"
    devices.add_address(channel, found.index, address, prefix_bits)
    devices.set_up(channel, found.index)
    return found.index


def _make_namespace(name: str) -> str:
    path = namespaces.make(name)
    with namespaces.inside(path):
        namespaces.without_ipv6("all", "default")
        namespaces.settle()
    with Channel(path) as channel:
        devices.set_up(channel, 1)
    return path
