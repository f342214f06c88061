"""Names and addresses of one run's namespaces. Pure: what is taken already is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2s
from ipaddress import IPv4Network

from testbed.fabric.base import NodeSpec
from testbed.fabric.docker.subnets import free_subnets
from testbed.links.wiring import NodeWires, TopologyPlan

_TAG_DIGITS = 6


def run_tag(run: str) -> str:
    """A few hexadecimal digits that stand for a run in names of devices."""
    return blake2s(run.encode()).hexdigest()[:_TAG_DIGITS]


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
            control_port=f"nw{tag}-{spec.peer}",
        )
        for spec in specs
    )
    plan = TopologyPlan(
        alias=run_alias(run),
        switch_netns=f"nw-{tag}-switch",
        # The last address of the subnet; nodes count from the first.
        switch_address=str(data[-2]),
        control_bridge=f"nw{tag}-c",
        control_host=str(control[1]),
        prefix_bits=data.prefixlen,
        nodes=nodes,
    )
    return plan, (data, control)
