"""The stack of a run on a swarm, as plain data from plain data; and which host each node is on.

Both networks are overlays that lead nowhere else. A node is a service of one task, which is never
started again. The links agent is a task on every host. The controller's task keeps a namespace on
the manager, in which the session listens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, NoReturn

from testbed.errors import InputError, MachineError
from testbed.fabric.base import START_S, ExecEnvironment
from testbed.fabric.docker.compose_file import (
    KEEPER,
    NODE_LABEL,
    RUN_LABEL,
    Document,
    Templates,
)
from testbed.fabric.docker.container_init import COMMANDS, LISTEN, OUTPUT_PATH
from testbed.scenario.link_state import FRAME_BYTES, LinkDirection
from testbed.topology import (
    AGENT_PORT,
    CONTROL_PORT,
    TOKEN_FILE,
    Machine,
    NodeSpec,
    RackSpec,
    limits,
)

CONTROLLER, AGENT = "narrows_controller", "narrows_agent"
"""Services beside the nodes, whose names have no underscore."""
_FIRST_PROCESS = ["python", "-P", "-m", "testbed.fabric.docker.container_init"]
_ATTACH_S = int(START_S) + 600
"""How long a task for commands waits for the controller, which waits until every task runs."""
AGENT_COMMAND = ["python", "-P", "-m", "testbed.links.agent.remote"]
RIGHTS = ["NET_ADMIN", "SYS_ADMIN", "SYS_NICE"]
"""Rights of agents: to shape, to enter network namespaces, to keep deadlines."""
VXLAN_BYTES = 50
"""Bytes that an overlay adds to every frame on the network between hosts."""
MOST_OF_UNDERLAY = 0.7
MOST_ROUND_TRIP_S = 1e-3
_NETNS = "/var/run/docker/netns"
_AGENT_TMP_BYTES = 16 << 20
_SHARED_MEMORY_BYTES = 1 << 30
"""Data loaders pass batches through it."""
_VERSION = "3.9"


@dataclass(frozen=True, slots=True)
class SwarmHost:
    """A machine of the swarm, as its manager knows it."""

    id: str
    name: str
    address: str = ""
    processors: float = 1.0
    memory_bytes: int = 8 << 30
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    manager: bool = False
    """True for the host on which the controller is."""


@dataclass(frozen=True, slots=True)
class StackPlan:
    """The contents of the stack of one run, except its nodes. ``hosts``: by node; ``manager``: the
    id of the host where the session is, which needs the controller's task there ("": not known);
    ``control``: the controller's address on the control network."""

    id: str
    image: str
    data: IPv4Network
    control_network: IPv4Network
    hosts: Mapping[str, SwarmHost]
    manager: str
    control: str = "CONTROLLER"
    folders: tuple[Path, ...] = ()
    trains: bool = True
    exec_environment: ExecEnvironment | None = None
    """The environment of nodes in which commands are launched."""


def refuse(what: str) -> NoReturn:
    """Raises InputError: no swarm has ``what``."""
    raise InputError(
        f"{what} are not possible on a swarm",
        where="--fabric swarm",
        hint="Take --fabric netns or docker, on one host",
    )


def stack_name(run: str) -> str:
    """The stack of a run; its services and networks bear the name."""
    return f"narrows-{run}"


def secret_name(run: str) -> str:
    """The secret that holds the run's token."""
    return f"{stack_name(run)}-token"


def network_name(run: str, network: str) -> str:
    """The name of one of a run's networks, ``data`` or ``control``."""
    return f"{stack_name(run)}-{network}"


def assign(
    specs: Sequence[NodeSpec],
    hosts: Sequence[SwarmHost],
    labels: Mapping[str, str],
    racks: Sequence[RackSpec] = (),
) -> dict[str, SwarmHost]:
    """Return the host of each node: of those with the label of its group (``labels``: ``key=value``
    by group), the one with the fewest nodes for its processors; of a rack, the same for all.

    Raises InputError where no host has a label, MachineError where there are too few GPUs.
    """
    counts: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    places: dict[str, SwarmHost] = {}
    others = {member: rack.members for rack in racks for member in rack.members}
    for spec in specs:
        own = others.get(spec.name, (spec.name,))
        taken = [places[member] for member in own if member in places]
        able = _labelled(spec, hosts, labels.get(spec.group))
        if taken and taken[0] not in able:
            raise InputError(
                f"{spec.name!r} is in a rack with nodes on host {taken[0].name!r}, which lacks the "
                f"label {labels[spec.group]!r}",
                where=f"swarm.placement.{spec.group}",
                hint="A rack is on one host: give the groups of its members the same label",
            )
        able = taken[:1] or able
        if spec.device == "cuda":
            able = [host for host in able if gpus[host.id] < host.gpus]
        if not able:
            raise MachineError(
                f"no host of the swarm has a GPU left for node {spec.name!r}",
                fix="Start the engines with --node-generic-resource NVIDIA-GPU=…, or use "
                "`device: cpu`",
            )
        size = len(own) if not taken else 0
        best = min(able, key=lambda host: ((counts[host.id] + size) / host.processors, host.name))
        counts[best.id] += size
        gpus[best.id] += spec.device == "cuda"
        places[spec.name] = best
    return places


def _labelled(spec: NodeSpec, hosts: Sequence[SwarmHost], label: str | None) -> list[SwarmHost]:
    if label is None:
        return list(hosts)
    key, _, value = label.partition("=")
    able = [host for host in hosts if host.labels.get(key) == value]
    if not able:
        raise InputError(
            f"no host of the swarm has the label {label!r}",
            where=f"swarm.placement.{spec.group}",
            hint=f"Give it to one: `docker node update --label-add {label} HOST`",
        )
    return able


def render(specs: Sequence[NodeSpec], plan: StackPlan, templates: Templates) -> Document:
    """The stack file: a service per node, the agent and the controller; two networks, a secret."""
    services = {CONTROLLER: _controller(plan), AGENT: _agent(plan)}
    services |= {spec.name: _node(spec, specs, plan, templates) for spec in specs}
    return {
        "version": _VERSION,
        "services": services,
        "networks": {
            "data": _network(plan, "data", plan.data),
            "control": _network(plan, "control", plan.control_network),
        },
        "secrets": {TOKEN_FILE.name: {"external": True, "name": secret_name(plan.id)}},
    }


def without_nodes(document: Document) -> Document:
    """The same stack before its nodes and agents: networks and the controller's task alone."""
    return {**document, "services": {CONTROLLER: document["services"][CONTROLLER]}}


def _service(plan: StackPlan, constraints: Sequence[str], *, labels: Document) -> Document:
    return {
        "image": plan.image,
        "init": True,
        "read_only": True,
        "cap_drop": ["ALL"],
        "stop_grace_period": "1s",
        "labels": labels,
        "logging": {"driver": "json-file", "options": {"max-size": "20m", "max-file": "1"}},
        "deploy": {
            "endpoint_mode": "dnsrr",
            "labels": labels,
            "placement": {"constraints": list(constraints)},
            "restart_policy": {"condition": "none"},
        },
    }


def _node(
    spec: NodeSpec, specs: Sequence[NodeSpec], plan: StackPlan, templates: Templates
) -> Document:
    host = plan.hosts[spec.name]
    labels = {RUN_LABEL: plan.id, NODE_LABEL: spec.name}
    service = _service(plan, [f"node.id == {host.id}"], labels=labels)
    template = templates.base["services"]["node"]
    service |= {key: deepcopy(template[key]) for key in ("user", "sysctls")}
    service["hostname"] = spec.name
    service["networks"] = ["data", "control"]
    options = ["--name", spec.name, "--control", f"{plan.control}:{CONTROL_PORT}"]
    options += ["--role", spec.role, *([] if plan.trains else ["--untrained"])]
    service["command"] = [*_FIRST_PROCESS, LISTEN, *options]
    here = sum(plan.hosts[other.name].id == host.id for other in specs)
    bounds = limits(spec.limits, here, Machine(_NO_LIMIT, host.memory_bytes))
    service["deploy"]["resources"] = {
        "limits": {"memory": str(bounds.memory_bytes), "pids": bounds.processes}
    }
    if spec.device == "cuda":
        gpu = {"discrete_resource_spec": {"kind": "NVIDIA-GPU", "value": 1}}
        service["deploy"]["resources"]["reservations"] = {"generic_resources": [gpu]}
    service["volumes"] = [
        {"type": "tmpfs", "target": "/tmp", "tmpfs": {"size": bounds.tmp_bytes}},
        *(_mount(str(folder), str(folder)) for folder in plan.folders),
    ]
    if plan.exec_environment is None or spec.role == "host":
        service["secrets"] = [TOKEN_FILE.name]
    else:
        _offer(service, plan.exec_environment, bounds.tmp_bytes)
    return service


def _offer(service: Document, offered: ExecEnvironment, most_bytes: int) -> None:
    """A task whose first process starts commands, and knows no secret."""
    service["init"] = False
    service["user"] = offered.user
    service["command"] = [*_FIRST_PROCESS, COMMANDS, str(offered.directory), str(_ATTACH_S)]
    service["environment"] = {"HOME": "/tmp", "USER": "narrows", "NARROWS_OUTPUT": OUTPUT_PATH}
    sizes = {"/dev/shm": _SHARED_MEMORY_BYTES}
    sizes |= dict.fromkeys((str(offered.directory), OUTPUT_PATH), most_bytes)
    if Path("/root") in offered.directory.parents:
        sizes = {"/root": _AGENT_TMP_BYTES, **sizes}  # the image's own is closed to others
    service["volumes"] += [
        {"type": "tmpfs", "target": target, "tmpfs": {"size": size}}
        for target, size in sizes.items()
    ]


_NO_LIMIT = 1 << 22
"""Processes of a host, where only its engine knows how many it may have: the kernel's most."""


def _agent(plan: StackPlan) -> Document:
    """On every host, with the rights that shaping takes, and no engine."""
    service = _service(plan, [], labels={RUN_LABEL: plan.id})
    service["deploy"]["mode"] = "global"
    return service | {
        "user": "0:0",
        "cap_add": RIGHTS,
        "networks": ["control"],
        "secrets": [TOKEN_FILE.name],
        "environment": {"NARROWS_HOST": "{{.Node.ID}}"},
        "command": [*AGENT_COMMAND, "--control", f"{plan.control}:{AGENT_PORT}"],
        "volumes": [
            {**_mount(_NETNS, "/netns"), "bind": {"propagation": "rslave"}},
            {"type": "tmpfs", "target": "/tmp", "tmpfs": {"size": _AGENT_TMP_BYTES}},
        ],
    }


def _controller(plan: StackPlan) -> Document:
    constraint = f"node.id == {plan.manager}" if plan.manager else "node.role == manager"
    service = _service(plan, [constraint], labels={RUN_LABEL: plan.id})
    service |= {"networks": ["data", "control"], "entrypoint": KEEPER}
    return service


def _mount(source: str, target: str) -> Document:
    return {"type": "bind", "source": source, "target": target, "read_only": True}


def _network(plan: StackPlan, name: str, subnet: IPv4Network) -> Document:
    return {
        "name": network_name(plan.id, name),
        "driver": "overlay",
        "internal": True,
        "labels": {RUN_LABEL: plan.id},
        "ipam": {"config": [{"subnet": str(subnet)}]},
    }


@dataclass(frozen=True, slots=True)
class Underlay:
    """The real network of a host, measured against the manager's before the run. ``rate_bits``:
    None for the manager's own host, whose packets stay on it."""

    host: str
    rate_bits: float | None
    round_trip_s: float

    def to_json(self) -> dict[str, Any]:
        """For manifest and certificate."""
        return {
            "host": self.host,
            "rate_bits": self.rate_bits,
            "round_trip_s": self.round_trip_s,
            "overhead_bytes": VXLAN_BYTES,
        }


def check_underlay(
    measured: Sequence[Underlay],
    hosts: Mapping[str, SwarmHost],
    rates: Mapping[LinkDirection, int],
) -> dict[str, float]:
    """Return the share of each measured host's real rate that emulated links may take, by host.

    ``rates``: the highest of each link direction, bit/s; ``hosts``: by node. Raises MachineError
    where they are more than 0.7 of it, or a round trip between hosts is longer than 1 ms.
    """
    shares = {}
    for network in measured:
        if network.round_trip_s > MOST_ROUND_TRIP_S:
            raise MachineError(
                f"a round trip to host {network.host} takes {network.round_trip_s * 1e3:.2f} ms, "
                f"and links are emulated on networks with at most {MOST_ROUND_TRIP_S * 1e3:g} ms",
                fix="Use hosts on one local network",
            )
        if network.rate_bits is None:
            continue
        wanted = _wanted(network.host, hosts, rates)
        shares[network.host] = wanted / network.rate_bits
        if shares[network.host] > MOST_OF_UNDERLAY:
            raise MachineError(
                f"the links of nodes on host {network.host} may carry {wanted / 1e6:.0f} Mbit/s "
                f"with {VXLAN_BYTES} B more in each frame, and its network was measured at "
                f"{network.rate_bits / 1e6:.0f} Mbit/s: that is more than {MOST_OF_UNDERLAY:.0%}",
                fix="Lower the rates, or give a larger `dilation`",
            )
    return shares


def _wanted(host: str, hosts: Mapping[str, SwarmHost], rates: Mapping[LinkDirection, int]) -> float:
    """Bit/s on the wire in the busier direction, if all nodes' links are full at once."""
    total: Counter[str] = Counter()
    for end, rate in rates.items():
        if end.link in hosts and hosts[end.link].name == host:
            total[end.direction] += rate
    return max(total.values(), default=0) * (FRAME_BYTES + VXLAN_BYTES) / FRAME_BYTES
