"""Objects of a run in the Docker engine: Compose called for it, containers and networks found by
its label, and removal from its journal.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from typing import Any

from testbed.errors import MachineError
from testbed.fabric import cleanup
from testbed.fabric.docker.compose_file import (
    NODE_LABEL,
    RUN_LABEL,
    SHAPER,
    container_name,
    project,
)
from testbed.host import docker_engine, images
from testbed.host.packages import CommandFailed, run
from testbed.journal import cleaners
from testbed.user_files import PinnedFolder

_LOG_LINES = 20_000
_NOT_FOUND, _GOING = 404, 409
_NOT_FROZEN = "freeze"
"""In what the engine's runtime says after some time in which not every process could be stopped."""
_FREEZE_S = 10.0
_REMOVE_S, _AGAIN_S = 30.0, 0.5
_SIGNAL_OFFSET = 128
"""A process that signal n ended has the exit code 128 + n."""


class Objects:
    """The engine's objects with one run's label. Raises MachineError when no engine answers."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.client = connect()
        self._paused: set[str] = set()

    def containers(self) -> dict[str, Any]:
        """The nodes' containers by the nodes' names, running or not."""
        return {c.labels[NODE_LABEL]: c for c in self._containers() if NODE_LABEL in c.labels}

    def dead(self) -> dict[str, str]:
        """Nodes whose container has ended, each with how. One request when none has."""
        ended = {**self._mine, "status": ["exited", "dead"]}
        dead = {}
        for container in self.client.api.containers(all=True, filters=ended):
            with _forgiving():
                state = self.client.api.inspect_container(container["Id"])["State"]
                dead[container["Labels"].get(NODE_LABEL, SHAPER)] = how_ended(state)
        return dead

    def pause(self, name: str) -> None:
        """Freeze a node's container. Raises MachineError when the engine refuses.

        A process that waits for a disk cannot be frozen before it has what it waits for; the
        engine's runtime soon gives up on it, so we ask again for up to ten seconds.
        """
        deadline = time.monotonic() + _FREEZE_S
        with _forgiving():
            while not self._frozen(name):
                if time.monotonic() > deadline:
                    raise MachineError(
                        f"{name} could not be paused in {_FREEZE_S:g} s: a process of it waits for "
                        "a disk",
                        fix="Pause it at a time when it reads and writes less",
                    )
            self._paused.add(name)

    def _frozen(self, name: str) -> bool:
        """Freeze a node's container; return whether the engine could. Raises APIError."""
        import docker

        try:
            self.client.api.pause(container_name(self.run, name))
        except docker.errors.APIError as error:
            if _NOT_FROZEN not in str(error.explanation):
                raise
            return False
        return True

    def resume(self, name: str) -> None:
        """Thaw it; nothing happens to one that was not paused."""
        if name in self._paused:
            self._paused.discard(name)
            with _forgiving():
                self.client.api.unpause(container_name(self.run, name))

    def signal(self, name: str, signal: str) -> None:
        """Send a signal to a node's container: its first process hands it on to the node."""
        with _forgiving():
            self.client.api.kill(container_name(self.run, name), signal)

    def save_logs(self, folder: PinnedFolder, nodes: Container[str]) -> None:
        """Write ``<node>.log`` for every one of ``nodes``, standard output and error together.
        Raises OSError."""
        for name, container in self.containers().items():
            if name not in nodes:
                continue
            with _forgiving():
                folder.write(f"{name}.log", container.logs(tail=_LOG_LINES))

    def remove(self) -> list[str]:
        """Remove everything that is left of the run; returns what it was.

        A busy engine may not know yet that a process that it has killed is gone, or that a network
        has nobody in it any more: what it refuses, it is asked again for half a minute.
        """
        removed: list[str] = []
        deadline = time.monotonic() + _REMOVE_S
        while True:
            try:
                self._remove(removed)
                return removed
            except MachineError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_AGAIN_S)

    def _remove(self, removed: list[str]) -> None:
        for container in self._containers():
            with _forgiving():
                _thaw(container)
                container.remove(force=True, v=True)
                removed.append(f"container {container.name}")
        for network in self.client.networks.list(filters=self._mine):
            with _forgiving():
                network.remove()
                removed.append(f"network {network.name}")

    def close(self) -> None:
        """Close the connections to the engine."""
        self.client.close()

    @property
    def _mine(self) -> dict[str, Any]:
        return {"label": f"{RUN_LABEL}={self.run}"}

    def _containers(self) -> list[Any]:
        with _forgiving():
            return list(
                self.client.containers.list(all=True, filters=self._mine, ignore_removed=True)
            )
        return []


def _thaw(container: Any) -> None:
    """A paused container takes no signal, not even the last."""
    if container.status == "paused":
        container.unpause()


def connect() -> Any:
    """A client of the engine. Raises MachineError with the fix when none answers."""
    import docker
    from requests.exceptions import RequestException

    try:
        return docker.from_env(version="auto")
    except (docker.errors.DockerException, RequestException):
        docker_engine.require()
        raise MachineError(
            "the Docker engine does not answer",
            fix="`docker` may have another context: run `docker context use default`, or name its "
            "engine in DOCKER_HOST",
        ) from None


def subnets_in_use(client: Any) -> list[IPv4Network]:
    """The IPv4 subnets of all networks that the engine knows."""
    configurations = [
        configuration
        for network in client.networks.list()
        for configuration in (network.attrs.get("IPAM") or {}).get("Config") or []
    ]
    given = (configuration.get("Subnet", "") for configuration in configurations)
    return [IPv4Network(subnet, strict=False) for subnet in given if "." in subnet]


def how_ended(state: dict[str, Any]) -> str:
    """How a container's process ended, from its ``State``."""
    code = int(state.get("ExitCode", 0))
    if state.get("OOMKilled"):
        return "killed for want of memory"
    if state.get("Error"):
        return f"could not be started: {state['Error']}"
    if code > _SIGNAL_OFFSET:
        return f"killed by signal {code - _SIGNAL_OFFSET}"
    return f"ended with exit code {code}"


@contextmanager
def _forgiving() -> Iterator[None]:
    """Ignore refusals for what has gone, or is going. Raises MachineError for others."""
    import docker

    try:
        yield
    except docker.errors.APIError as error:
        if error.status_code not in (_NOT_FOUND, _GOING):
            raise MachineError(f"the Docker engine refused: {error.explanation}") from error


FILE = "compose.yaml"


class SubnetTaken(MachineError):
    """The engine refused a subnet: another run was quicker."""


class Compose:
    """Compose for one run."""

    def __init__(self, run: str, token: str) -> None:
        self.project, self._token = project(run), token
        self._text = ""

    def write(self, text: str, folder: PinnedFolder) -> None:
        """Take what is to be made; a copy for readers goes into ``folder``."""
        self._text = text
        folder.write(FILE, text.encode())

    def create(self) -> None:
        """Make networks and containers, start nothing. Raises SubnetTaken, MachineError."""
        try:
            self._call("up", "--no-start")
        except CommandFailed as error:
            if "overlap" in error.output.lower():
                raise SubnetTaken(error.message) from None
            raise

    def start(self, *services: str) -> None:
        """Start these services; all of them when none is named."""
        self._call("start", *services)

    def _call(self, *arguments: str) -> str:
        program = docker_engine.compose_command()
        if program is None:
            raise MachineError("Docker Compose is missing", fix="Run `testbed setup`")
        # The project's folder is where Compose looks for `.env`.
        which = ["--project-name", self.project, "--project-directory", "/", "--file", "-"]
        environment = {"NARROWS_TOKEN": self._token, "COMPOSE_IGNORE_ORPHANS": "true"}
        return run([*program, *which, *arguments], env=environment, data=self._text.encode())


KIND = "docker"
"""The kind of journal entries that stand for everything with a run's label."""

_CLEAN_LINK = """
import json, sys
from testbed.fabric.cleanup import clean_link
clean_link(json.loads(sys.argv[1]))
"""


def clean(entry: dict[str, Any]) -> list[str]:
    """Remove what is left of the entry's run; returns what that was. Raises MachineError."""
    objects = Objects(str(entry["run"]))
    try:
        return objects.remove()
    finally:
        objects.close()


def clean_link(entry: dict[str, Any]) -> list[str]:
    """As ``cleanup.clean_link``; a device that a shaper made for a user without rights needs
    another one.

    Raises OSError or MachineError when it could not be removed.
    """
    try:
        return cleanup.clean_link(entry)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
    _through_the_engine(entry)
    return [f"device {entry['name']}"]


def _through_the_engine(entry: dict[str, Any]) -> None:
    from docker.errors import DockerException

    try:
        client = connect()
        try:
            client.containers.run(
                images.require(),
                ["python", "-c", _CLEAN_LINK, json.dumps(entry)],
                user="0:0",
                network_mode="host",
                cap_drop=["ALL"],
                cap_add=["NET_ADMIN"],
                read_only=True,
                remove=True,
            )
        finally:
            client.close()
    except (DockerException, MachineError) as error:
        raise MachineError(
            f"only root may remove it, and a container could not: {error}; "
            f"`ip link delete {entry['name']}` as root does"
        ) from error


def register() -> None:
    """Make this known to whoever sweeps journals, after ``fabric.cleanup``. Safe to call twice."""
    cleaners[KIND] = clean
    cleaners["link"] = clean_link
