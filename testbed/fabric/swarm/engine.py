"""A Docker Swarm as its manager's engine shows it: hosts, and one run's tasks, networks and secret.

What a run made bears its label. The journal has one entry for all of it.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

from testbed.errors import ExperimentError, MachineError
from testbed.fabric.base import START_S
from testbed.fabric.docker.compose_file import RUN_LABEL, Document, to_yaml
from testbed.fabric.docker.engine import connect, subnets_in_use
from testbed.fabric.swarm.stack_file import (
    AGENT,
    CONTROLLER,
    SwarmHost,
    network_name,
    secret_name,
    stack_name,
)
from testbed.host import images
from testbed.host.packages import CommandFailed, run
from testbed.journal import cleaners, journals
from testbed.user_files import PinnedFolder

KIND = "swarm"
"""The kind of journal entries that stand for everything of a run in a swarm."""
CONTROLLER_LABEL = "narrows.controller"
"""On a run's secret: the host from which it was made."""
END_S = 20.0
"""How long tasks may take to be gone from every host that answers."""
_POLL_S = 0.1
_DEPLOY_S = 60.0
_LOG_LINES = 20_000
_UNDER_WAY = frozenset(
    {"new", "allocated", "pending", "assigned", "accepted", "preparing", "ready", "starting"}
)
_NVIDIA = "NVIDIA-GPU"


@dataclass(frozen=True, slots=True)
class SwarmTask:
    """A task of a run. ``node``: "" for what is no node; ``host``: the id of its host."""

    node: str
    service: str
    host: str
    state: str
    error: str
    exit_code: int
    container: str
    addresses: Mapping[str, str]
    """Its address, by network (``data``, ``control``)."""


class SwarmManager:
    """One run in the swarm of this machine's engine. Raises MachineError where there is none, or
    this engine is no manager of it."""

    def __init__(self, run_id: str) -> None:
        self.run = run_id
        self.client = connect()
        state = self.client.info()["Swarm"]
        if not state.get("ControlAvailable"):
            self.client.close()
            raise MachineError(
                "this machine's engine manages no swarm",
                fix="Run this on a manager, or make a swarm: `docker swarm init`, then "
                "`docker swarm join` on the other hosts (docs/how-to/swarm.md)",
            )
        self.own = str(state["NodeID"])

    def hosts(self) -> list[SwarmHost]:
        """The hosts that are up and take tasks, by name."""
        listed = [_host(node.attrs, self.own) for node in self.client.nodes.list() if _able(node)]
        return sorted(listed, key=lambda host: host.name)

    def down(self) -> set[str]:
        """The ids of hosts that the manager takes for dead."""
        nodes = self.client.nodes.list()
        return {node.id for node in nodes if node.attrs["Status"]["State"] == "down"}

    def taken(self) -> list[IPv4Network]:
        """Subnets that no network of this run may have."""
        return subnets_in_use(self.client)

    def add_secret(self, token: str) -> None:
        """Keep the run's token in the swarm."""
        labels = {RUN_LABEL: self.run, CONTROLLER_LABEL: socket.gethostname()}
        self.client.secrets.create(name=secret_name(self.run), data=token.encode(), labels=labels)

    def deploy(self, document: Document) -> str:
        """Have the swarm make a stack, or add to it. Returns what the client said."""
        command = ["docker", "stack", "deploy", "--resolve-image", "never", "-c", "-"]
        command += ["--with-registry-auth"]  # or no host but this one may pull
        text = to_yaml(document).encode()
        try:
            return run([*command, stack_name(self.run)], data=text, timeout=_DEPLOY_S)
        except CommandFailed as error:
            raise MachineError(f"the swarm refused the stack: {error.output.strip()}") from None

    def tasks(self) -> list[SwarmTask]:
        """All tasks of the run. Raises MachineError where the manager does not answer."""
        from docker.errors import APIError
        from requests.exceptions import RequestException

        prefix = f"{stack_name(self.run)}_"
        try:
            services = self.client.api.services(filters=self._mine)
            names = {
                service["ID"]: service["Spec"]["Name"].removeprefix(prefix) for service in services
            }
            if not names:
                return []
            listed = self.client.api.tasks(filters={"service": list(names)})
        except (APIError, RequestException) as error:
            raise MachineError(f"the swarm's manager does not answer: {error}") from error
        return [self._task(attributes, names) for attributes in listed]

    def await_running(self, services: Sequence[str]) -> dict[str, list[SwarmTask]]:
        """Wait until every task of these services runs; returns them by service.

        Raises ExperimentError for one that ends or is refused, or after ``START_S``.
        """
        give_up = time.monotonic() + START_S
        hosts = {host.id: host.name for host in self.hosts()}
        while True:
            tasks: dict[str, list[SwarmTask]] = {name: [] for name in services}
            for task in self.tasks():
                if task.service in tasks:
                    tasks[task.service].append(task)
            waiting = [
                name
                for name, own in tasks.items()
                if not own or not all(_runs(task, hosts) for task in own)
            ]
            if not waiting:
                return tasks
            if time.monotonic() > give_up:
                said = {task.error for own in tasks.values() for task in own if task.error}
                raise ExperimentError(
                    f"after {START_S:g} s not running (NARROWS_START_S gives more time): "
                    f"{', '.join(waiting)}"
                    f"{': ' if said else ''}{'; '.join(sorted(said))}"
                )
            time.sleep(_POLL_S)

    def process(self, task: SwarmTask) -> int:
        """The first process of a task on this host."""
        return int(self.client.api.inspect_container(task.container)["State"]["Pid"])

    def network_id(self, name: str) -> str:
        """The id of one of the run's networks."""
        return str(self.client.networks.get(network_name(self.run, name)).id)

    def save_logs(self, folder: PinnedFolder, nodes: Sequence[str], within_s: float) -> None:
        """Write ``<node>.log`` for nodes, as far as they can be had in some time: a dead host's
        cannot."""
        give_up = time.monotonic() + within_s
        for node in nodes:
            if time.monotonic() > give_up:
                return
            with suppress(CommandFailed):
                named = f"{stack_name(self.run)}_{node}"
                command = ["docker", "service", "logs", "--raw", "--tail", str(_LOG_LINES), named]
                folder.write(f"{node}.log", run(command, timeout=within_s).encode())

    def stop_node(self, node: str) -> None:
        """End a node's task."""
        self._remove(self.client.services, {"name": f"{stack_name(self.run)}_{node}"})

    def remove(self) -> list[str]:
        """Remove everything of the run from every host; returns what it was. Hosts that are down
        lose theirs when they are back."""
        own = {each["ID"] for each in self.client.api.services(filters=self._mine)}
        names = self._remove(self.client.services, self._mine)
        give_up = time.monotonic() + END_S
        while time.monotonic() < give_up and self._left(own):
            time.sleep(_POLL_S)
        names += self._remove(self.client.secrets, self._mine)
        give_up = time.monotonic() + END_S
        while (left := self._remove_networks(names)) and time.monotonic() < give_up:
            time.sleep(_POLL_S)
        if left:
            raise MachineError(f"the swarm still uses {', '.join(left)}")
        return names

    def close(self) -> None:
        """Close the connections to the engine."""
        self.client.close()

    @property
    def _mine(self) -> dict[str, Any]:
        return {"label": f"{RUN_LABEL}={self.run}"}

    def _left(self, services: Collection[str]) -> bool:
        """Return whether a task of these is still on a host that is up.

        Containers of this host are looked at themselves: the manager forgets tasks first.
        """
        if self.client.api.containers(all=True, filters=self._mine):
            return True
        down = self.down()
        return any(
            task["ServiceID"] in services
            and task["Status"]["State"] in (*_UNDER_WAY, "running")
            and task.get("NodeID") not in down
            for task in self.client.api.tasks()
        )

    def _remove(self, collection: Any, filters: Mapping[str, Any]) -> list[str]:
        from docker.errors import NotFound

        removed = []
        for each in collection.list(filters=dict(filters)):
            with suppress(NotFound):
                each.remove()
                removed.append(f"{type(each).__name__.lower()} {each.name}")
        return removed

    def _remove_networks(self, names: list[str]) -> list[str]:
        """Those that some task still uses are left; returns their names."""
        from docker.errors import APIError, NotFound

        left = []
        for network in self.client.networks.list(filters=self._mine):
            try:
                network.remove()
                names.append(f"network {network.name}")
            except NotFound:
                continue
            except APIError:
                left.append(str(network.name))
        return left

    def _task(self, attributes: Mapping[str, Any], names: Mapping[str, str]) -> SwarmTask:
        status = attributes["Status"]
        container = status.get("ContainerStatus") or {}
        service = names[attributes["ServiceID"]]
        attached = {
            each["Network"]["Spec"]["Name"]: each["Addresses"][0].partition("/")[0]
            for each in attributes.get("NetworksAttachments") or ()
        }
        known = {name: network_name(self.run, name) for name in ("data", "control")}
        return SwarmTask(
            node="" if service in (AGENT, CONTROLLER) else service,
            service=service,
            host=attributes.get("NodeID", ""),
            state=status["State"],
            error=status.get("Err", ""),
            exit_code=int(container.get("ExitCode") or 0),
            container=container.get("ContainerID", ""),
            addresses={name: attached[own] for name, own in known.items() if own in attached},
        )


def _able(node: Any) -> bool:
    about = node.attrs
    return bool(about["Status"]["State"] == "ready" and about["Spec"]["Availability"] == "active")


def _host(about: Mapping[str, Any], own: str) -> SwarmHost:
    description = about["Description"]
    resources = description["Resources"]
    return SwarmHost(
        id=about["ID"],
        name=description["Hostname"],
        address=about["Status"].get("Addr", ""),
        processors=resources["NanoCPUs"] / 1e9,
        memory_bytes=resources["MemoryBytes"],
        labels=about["Spec"].get("Labels") or {},
        gpus=_gpus(resources.get("GenericResources") or ()),
        manager=about["ID"] == own,
    )


def _gpus(resources: Sequence[Mapping[str, Any]]) -> int:
    count = 0
    for resource in resources:
        for kind, about in resource.items():
            if about["Kind"] == _NVIDIA:
                count += int(about["Value"]) if kind.startswith("Discrete") else 1
    return count


def _runs(task: SwarmTask, hosts: Mapping[str, str]) -> bool:
    """Raises ExperimentError for a task that will not run any more. ``hosts``: names by id."""
    if task.state == "running":
        return True
    if task.state in _UNDER_WAY:
        return False
    host = hosts.get(task.host, task.host)
    raise ExperimentError(
        f"the task of {task.service!r} on host {host} is {task.state}: "
        f"{task.error or f'exit code {task.exit_code}'}{_image_hint(task.error, host)}"
    )


def _image_hint(error: str, host: str) -> str:
    """How a host gets the image that it lacks: from a registry it has a name there, else none."""
    _, lacks, image = error.partition("No such image: ")
    if not lacks:
        return ""
    if not image.startswith("sha256:"):
        return f"; see what `docker pull {image}` says there"
    return f"; load it there: `docker save {images.tags().node} | ssh {host} docker load`"


def known_hosts(labels: Iterable[str]) -> list[SwarmHost]:
    """The hosts of this machine's swarm; where it manages none, such as a plan can name."""
    try:
        swarm = SwarmManager("")
    except MachineError:
        other = [("HOST", ""), *((f"HOST-WITH-{label}", label) for label in sorted(set(labels)))]
        return [SwarmHost(name, name, labels=_one_label(label)) for name, label in other]
    try:
        return swarm.hosts()
    finally:
        swarm.close()


def _one_label(label: str) -> dict[str, str]:
    key, _, value = label.partition("=")
    return {key: value} if label else {}


def image_reference(registry: str | None) -> str:
    """Return what tasks are made of: the node image by its digest in ``registry``, pushed there
    now; or by its id, which every host has loaded. Raises MachineError."""
    tag = images.require()
    if registry is None:
        return run(["docker", "image", "inspect", "--format", "{{.Id}}", tag]).strip()
    reference = f"{registry}/{tag}"
    try:
        run(["docker", "tag", tag, reference])
        run(["docker", "push", "--quiet", reference])
        digests = run(
            ["docker", "image", "inspect", "--format", "{{json .RepoDigests}}", reference]
        )
    except CommandFailed as error:
        raise MachineError(
            f"the image could not be pushed to {registry}: {error.output.strip()}",
            fix="Check `swarm.registry` of the scenario, `docker login`, and, without TLS, "
            "`insecure-registries` of every engine (docs/how-to/swarm.md)",
        ) from None
    return next(digest for digest in _listed(digests) if digest.startswith(f"{registry}/"))


def _listed(digests: str) -> list[str]:
    return [str(digest) for digest in json.loads(digests)]


def clean(entry: dict[str, Any]) -> list[str]:
    """Remove what is left of the entry's run on every host; returns what that was."""
    swarm = SwarmManager(str(entry["run"]))
    try:
        return swarm.remove()
    finally:
        swarm.close()


def clean_unlisted() -> dict[str, list[str]]:
    """Remove runs that were made from this host and have no journal any more; what, by run."""
    swarm, listed = SwarmManager(""), {journal.run for journal in journals()}
    try:
        labels = [
            secret.attrs["Spec"].get("Labels") or {} for secret in swarm.client.secrets.list()
        ]
    finally:
        swarm.close()
    own = {each[RUN_LABEL] for each in labels if each.get(CONTROLLER_LABEL) == socket.gethostname()}
    return {run_id: clean({"run": run_id}) for run_id in sorted(own - listed)}


def register() -> None:
    """Make this known to whoever sweeps journals. Safe to call twice."""
    cleaners[KIND] = clean
