"""Whether somebody's command can run on the nodes of a scenario: what the scenario's own checks leave open."""

from __future__ import annotations

import pwd
from contextlib import suppress
from pathlib import Path

from testbed.errors import InputError
from testbed.fabric.view import account
from testbed.scenario.absences import nobody_leaves
from testbed.scenario.expand import expand
from testbed.scenario.load import Loaded
from testbed.scenario.traffic import flows

DOCKER = "docker"
"""The fabric whose nodes are containers."""
_SYSTEM = (
    "bin",
    "boot",
    "dev",
    "etc",
    "lib",
    "lib32",
    "lib64",
    "proc",
    "run",
    "sbin",
    "sys",
    "usr",
)
_OF_ROOTS = (
    "var/cache",
    "var/lib/cloud",
    "var/lib/docker",
    "var/lib/dpkg",
    "var/lib/systemd",
    "var/log",
    "var/spool",
)
"""Where what root owns is the system's: tables of cron, scripts of packages."""
_SHARED = ("home", "opt", "root", "srv", "tmp", "var", "var/lib", "var/tmp")


def check_nodes(loaded: Loaded) -> None:
    """Raises InputError for traffic or absence of nodes that run the command."""
    nobody_leaves(loaded)
    hosts = {spec.name for spec in expand(loaded.scenario) if spec.role == "host"}
    for flow in flows(loaded.scenario):
        if others := {flow.source, flow.sink} - hosts:
            raise InputError(
                f"traffic {flow.name!r}: {', '.join(sorted(others))} runs the command, and no traffic of ours",
                where=str(loaded.source),
                hint="Have it made between nodes with `role: host`, in the same racks",
            )


def check_fabric(loaded: Loaded, fabric: str) -> None:
    """Raises InputError where there are no real nodes, or none with images."""
    if fabric == "sim":
        raise InputError(
            "a command runs on real nodes only: in virtual time there are none",
            where="--fabric",
            hint="Use netns or docker",
        )
    here = Path.cwd()
    if here == Path("/") or (_others_use(here) and (fabric == DOCKER or account() is not None)):
        raise InputError(
            f"nodes may write to the folder that the command starts in, which would be all of {here}",
            where="the working directory",
            hint="Start it in a folder of its own",
        )
    images = [name for name, group in loaded.scenario.nodes.items() if group.image is not None]
    if images and fabric != DOCKER:
        raise InputError(
            f"{', '.join(images)}: an image is a container's, and nodes of {fabric!r} are none",
            where=str(loaded.source),
            hint="Use --fabric docker, or leave `image` out",
        )


def _others_use(folder: Path) -> bool:
    """Whether a folder is a home, has one in it, or is the system's: what a job writes there others would execute or read."""
    root, owner = Path("/"), folder.stat().st_uid
    homes = [Path.home()]
    with suppress(KeyError):  # a user without an entry
        homes.append(Path(pwd.getpwuid(owner).pw_dir))
    return any(
        [
            *(home.resolve().is_relative_to(folder) for home in homes if home.is_dir()),
            *(folder.is_relative_to(root / name) for name in _SYSTEM),
            *(folder.is_relative_to(root / name) for name in _OF_ROOTS if owner == 0),
            *(folder == root / name for name in _SHARED),
        ]
    )
