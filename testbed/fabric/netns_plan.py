"""Names and addresses of one run's namespaces, and of its racks. What is taken already is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2s
from ipaddress import IPv4Network
from typing import TYPE_CHECKING

from testbed.fabric.base import Cable, NodeSpec, Place, RackSpec
from testbed.fabric.docker.subnets import free_subnets
from testbed.links.wiring import NodeWires, RackPlan, RackWires, TopologyPlan

if TYPE_CHECKING:
    from testbed.links.client import Agent

_TAG_BYTES = 8
_DEVICE_DIGITS = 6
"""Digits of a tag in a device's name, which has 15 characters at most: on a host they are told apart by what is written on them."""


def run_tag(run: str) -> str:
    """Hexadecimal digits that stand for a run in names of namespaces, and the first of them in those of devices."""
    return blake2s(run.encode(), digest_size=_TAG_BYTES).hexdigest()


def run_alias(run: str) -> str:
    """What is written on a run's devices in the host's namespace."""
    return f"narrows {run}"


def plan_topology(
    run: str, specs: Sequence[NodeSpec], taken: Iterable[IPv4Network]
) -> tuple[TopologyPlan, tuple[IPv4Network, IPv4Network]]:
    """Plan a run; returns the plan and its subnets (data, control).

    Every name bears a tag made from the run's id, and fits the 15 characters that devices may have.
    Raises MachineError when no subnets are free.
    """
    tag = run_tag(run)
    data, control = free_subnets(taken, len(specs), start=int(tag, 16))
    nodes = tuple(
        NodeWires(
            name=spec.name,
            netns=f"nw-{tag}-{spec.name}",
            data_address=str(data[1 + spec.peer]),
            control_address=str(control[2 + spec.peer]),
            port=f"port{spec.peer}",
            control_port=f"port{spec.peer}",
        )
        for spec in specs
    )
    plan = TopologyPlan(
        alias=run_alias(run),
        switch_netns=f"nw-{tag}-switch",
        # The last address of the subnet; nodes count from the first.
        switch_address=str(data[-2]),
        control_netns=f"nw-{tag}-control",
        control_bridge="control",
        control_host=str(control[1]),
        prefix_bits=data.prefixlen,
        nodes=nodes,
    )
    return plan, (data, control)


def plan_racks(
    tag: str,
    alias: str,
    specs: Sequence[RackSpec],
    places: Mapping[str, Place],
    switch: str | None = None,
) -> RackPlan:
    """Names for the racks of a run, each with its ``tag`` and within 15 characters.

    ``switch``: the name of the namespace that the core is in; None: the host's, so that the racks get one.
    """
    racks = tuple(
        RackWires(
            name=spec.name,
            bridge=f"rack{number}",
            uplink=f"uplink{number}",
            port=f"nw{tag[:_DEVICE_DIGITS]}-r{number}",
            members={member: places[member].cable for member in spec.members},
        )
        for number, spec in enumerate(specs)
    )
    return RackPlan(alias, switch or f"nw-{tag}-racks", switch is None, racks)


def plan_core(tag: str, alias: str, places: Mapping[str, Place]) -> RackPlan:
    """One rack that all nodes are in: the core for other racks, in a namespace made for it.

    For multicasts: the host's firewall lets none of them through a bridge that it looks at.
    """
    members = {name: place.cable for name, place in places.items()}
    wires = RackWires("core", "core", "coreup", f"nw{tag[:_DEVICE_DIGITS]}-core", members)
    return RackPlan(alias, f"nw-{tag}-racks", True, (wires,))


def install(
    agent: Agent, plan: RackPlan, places: Mapping[str, Place]
) -> tuple[dict[str, Cable], dict[str, Place]]:
    """Have the agent make the racks; returns their cables, and the nodes with their ports where they are now."""
    if not plan.racks:
        return {}, dict(places)
    made = agent.racks(plan)
    moved = {
        name: replace(place, port=made.ports.get(name, place.port))
        for name, place in places.items()
    }
    return made.cables, moved
