"""The Compose file of a run, as plain data from plain data. Accepted by Compose 1.29 and 2.

What all nodes have alike (read-only root, no capabilities) stands in ``compose/base.yaml``.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from testbed.fabric.base import ExecEnvironment
from testbed.fabric.file_view import between
from testbed.topology import CONTROL_PORT, Limits, Machine, NodeSpec, limits

RUN_LABEL = "narrows.run"
"""On everything of a run; its value is the run's id."""

NODE_LABEL = "narrows.node"
"""On a node's container; its value is the node's name."""

SHAPER = "narrows.shaper"
"""The service that shapes where the user is not root; names of nodes have no point in them."""

KEEPER = ["tail", "-f", "/dev/null"]
"""The command of a container that waits for commands: every image has this program."""
OUTPUT = "/output"
"""Where containers find the folder for what a job makes."""
_SHARED_MEMORY = "1gb"
"""Data loaders pass batches through it; the engine's own 64 MB are soon full."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ComposePlan:
    """The contents of the Compose file of one run, except its nodes."""

    id: str
    image: str
    data: IPv4Network
    control: IPv4Network
    shaper: bool = False
    """True if the agent is a service, too."""
    racks: bool = False
    """True if that agent makes racks."""
    gpus: int = 1
    """CUDA devices of the host; nodes with ``device: cuda`` take them in turn."""
    folders: tuple[Path, ...] = ()
    """Folders of the host that nodes may read under the same paths."""
    records: Path | None = None
    """The run's directory, which commands do not write to."""
    exec_environment: ExecEnvironment | None = None
    """The environment of nodes in which commands are launched."""
    trains: bool = True
    """True if nodes other than hosts train."""
    machine: Machine = field(default_factory=Machine.here)
    """The machine that nodes share."""


@dataclass(frozen=True, slots=True)
class Templates:
    """``compose/base.yaml`` and ``compose/gpu.yaml``, read."""

    base: Document
    gpu: Document


def project(run: str) -> str:
    """The Compose project of a run; its containers and networks bear the name."""
    return f"narrows-{run}"


def container_name(run: str, node: str) -> str:
    """Return the name of a node's container."""
    return f"{project(run)}-{node}"


def gateway(network: IPv4Network) -> IPv4Address:
    """The host's own address on a network."""
    return network[1]


def address(network: IPv4Network, spec: NodeSpec) -> IPv4Address:
    """A node's address: by its peer number, after the gateway's."""
    return network[2 + spec.peer]


def render(specs: Sequence[NodeSpec], plan: ComposePlan, templates: Templates) -> Document:
    """The Compose file: a service per node, two networks, and the shaper where it is wanted."""
    services = {
        spec.name: _node(spec, plan, templates, limits(spec.limits, len(specs), plan.machine))
        for spec in specs
    }
    if plan.shaper:
        services[SHAPER] = _shaper(plan, templates)
    networks = {name: _network(name, plan, templates) for name in ("data", "control")}
    return {"services": services, "networks": networks}


def to_yaml(document: Document) -> str:
    """The file's text. Every string is quoted: to YAML 1.1, which some versions read, a bare ``no``
    is false.

    A ``$`` is doubled: Compose would put a variable in its place.
    """
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 200
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(_quoted(document), stream)
    return stream.getvalue()


def load_templates(folder: Path) -> Templates:
    """Read the templates from ``folder``."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    return Templates(
        *(yaml.load((folder / name).read_text()) for name in ("base.yaml", "gpu.yaml"))
    )


def _node(spec: NodeSpec, plan: ComposePlan, templates: Templates, bounds: Limits) -> Document:
    service: Document = deepcopy(templates.base["services"]["node"])
    _bound(service, bounds)
    if spec.device == "cuda":
        _merge(service, templates.gpu["services"]["node"])
        devices = service["deploy"]["resources"]["reservations"]["devices"]
        devices[0]["device_ids"] = [str(spec.peer % max(plan.gpus, 1))]
    service["image"] = plan.image
    service["container_name"] = container_name(plan.id, spec.name)
    service["hostname"] = spec.name
    if plan.exec_environment is not None and spec.role != "host":
        _offer(service, spec, plan, plan.exec_environment)
    else:
        _staff(service, spec, plan)
    service["networks"] = {
        "data": {"ipv4_address": str(address(plan.data, spec))},
        "control": {"ipv4_address": str(address(plan.control, spec))},
    }
    return service


def _staff(service: Document, spec: NodeSpec, plan: ComposePlan) -> None:
    """A container with a process of ours."""
    control = f"{gateway(plan.control)}:{CONTROL_PORT}"
    options = ["--name", spec.name, "--control", control, "--role", spec.role]
    options += [] if plan.trains else ["--untrained"]
    module = (
        "testbed.runner.node_process"
        if spec.role == "server"
        else "testbed.fabric.docker.container_init"
    )
    service["command"] = ["python", "-P", "-m", module, *options]
    service["labels"] = {RUN_LABEL: plan.id, NODE_LABEL: spec.name}
    if plan.folders:
        service["volumes"] = [_mount(folder, read_only=True) for folder in plan.folders]


def _offer(service: Document, spec: NodeSpec, plan: ComposePlan, offered: ExecEnvironment) -> None:
    """A container that waits for commands. Its first process ends with the container."""
    own = offered.images.get(spec.name)
    service["image"] = own or service["image"]
    service["read_only"] = own is None or not offered.writable_root
    service["init"] = False
    service["entrypoint"] = KEEPER
    service["user"] = offered.user
    service["shm_size"] = _SHARED_MEMORY
    service["working_dir"] = str(offered.directory)
    service["environment"] = {"HOME": "/tmp", "USER": "narrows"}
    service["labels"] = {RUN_LABEL: plan.id, NODE_LABEL: spec.name}
    # Sockets can be connected to where nothing can be written.
    folders = dict.fromkeys((*plan.folders, offered.rendezvous_dir), True) | {
        offered.directory: False
    }
    if plan.records is not None and offered.directory in plan.records.parents:
        # Folders on the way are mounts, too: else they could be renamed, and others put in their
        # place.
        folders |= dict.fromkeys(between(offered.directory, plan.records), False)
        folders[plan.records] = True
    service["volumes"] = [_mount(folder, read_only=only) for folder, only in folders.items()]
    if offered.output is not None:
        service["volumes"].append(_mount(offered.output, read_only=False, target=OUTPUT))
        service["environment"]["NARROWS_OUTPUT"] = OUTPUT
    if offered.home_of_root is not None:
        service["volumes"].append(_mount(offered.home_of_root, read_only=True, target="/root"))


def _bound(service: Document, bounds: Limits) -> None:
    """Swap counts as memory: a node that needs it would stand still, and others with it."""
    service["pids_limit"] = bounds.processes
    service["mem_limit"] = service["memswap_limit"] = bounds.memory_bytes
    service["tmpfs"] = [f"/tmp:size={bounds.tmp_bytes}"]


def _mount(folder: Path, *, read_only: bool, target: str | None = None) -> Document:
    """Under its own path, if ``target`` is no other."""
    source = str(folder)
    return {"type": "bind", "source": source, "target": target or source, "read_only": read_only}


def _shaper(plan: ComposePlan, templates: Templates) -> Document:
    service: Document = deepcopy(templates.base["services"]["shaper"])
    service["image"] = plan.image
    service["container_name"] = f"{project(plan.id)}-{SHAPER}"
    service["labels"] = {RUN_LABEL: plan.id}
    if plan.racks:
        # AppArmor's own profile for containers forbids the mount that keeps the racks' network
        # namespace.
        service["security_opt"] = [*service["security_opt"], "apparmor:unconfined"]
    return service


def _network(name: str, plan: ComposePlan, templates: Templates) -> Document:
    subnet: IPv4Network = getattr(plan, name)
    network: Document = deepcopy(templates.base["networks"][name])
    network["name"] = f"{project(plan.id)}-{name}"
    network["labels"] = {RUN_LABEL: plan.id}
    network["ipam"] = {"config": [{"subnet": str(subnet), "gateway": str(gateway(subnet))}]}
    return network


def _merge(onto: Document, extra: Mapping[str, Any]) -> None:
    """Lay ``extra`` over ``onto``: mappings are merged, everything else is replaced."""
    for key, value in extra.items():
        if isinstance(value, Mapping) and isinstance(onto.get(key), dict):
            _merge(onto[key], value)
        else:
            onto[key] = deepcopy(value)


def _quoted(value: Any) -> Any:
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, Mapping):
        return {key: _quoted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_quoted(item) for item in value]
    return DoubleQuotedScalarString(value.replace("$", "$$")) if isinstance(value, str) else value
