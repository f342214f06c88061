"""Removing what a run left in the engine, or with the engine's help, from its journal."""

from __future__ import annotations

import errno
import json
from typing import Any

from testbed.errors import MachineError
from testbed.fabric import netns_clean
from testbed.fabric.docker.objects import Objects, connect
from testbed.fabric.journal import cleaners
from testbed.setup import images

KIND = "docker"
"""Of journal entries: ``{"kind": "docker", "run": <id>}`` stands for everything with that run's label."""

_CLEAN_LINK = """
import json, sys
from testbed.fabric.netns_clean import clean_link
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
    """As ``netns_clean.clean_link``; a device that a shaper made for a user without rights needs another one.

    Raises OSError or MachineError when it could not be removed.
    """
    try:
        return netns_clean.clean_link(entry)
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
    """Make this known to whoever sweeps journals, after ``netns_clean``. Safe to call twice."""
    cleaners[KIND] = clean
    cleaners["link"] = clean_link
