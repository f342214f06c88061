"""Every need of the project as a named check, in the order in which they build on each other."""

from __future__ import annotations

import grp
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from testbed.fabric import cgroups
from testbed.guest import installed
from testbed.setup import engine, images, packages, venv
from testbed.setup.check import Check, Finding
from testbed.setup.network_checks import NETWORK, namespaces_allowed
from testbed.setup.torch_build import has_gpu

_GIB = 2**30
_DISK_GIB = 6
_MEMORY_GIB = 4
_CPUS = 2
_IMPORTS = (
    "docker",
    "greenlet",
    "matplotlib",
    "numba",
    "pydantic",
    "pyroute2",
    "ruamel.yaml",
    "sklearn",
    "torch",
    "typer",
)
_MAKE_SETUP = "Run `make setup`"


def python_version() -> Finding:
    """Python 3.11 or newer."""
    detail = sys.version.split()[0]
    return Finding(sys.version_info >= (3, 11), detail, "Install Python 3.11 or newer")


def environment() -> Finding:
    """Every library that is imported can be."""
    absent = [name for name in _IMPORTS if _absent(name)]
    detail = f"missing: {', '.join(absent)}" if absent else f"{len(_IMPORTS)} libraries found"
    return Finding(not absent, detail, _MAKE_SETUP)


def privileges() -> Finding:
    """Root, a member of the docker group, or a user who may have a user namespace."""
    if os.geteuid() == 0:
        return Finding(True, "root")
    member = any(_group(number) == "docker" for number in os.getgroups())
    ways = ["member of the docker group: fabric docker"] if member else []
    ways += ["user namespaces: fabric netns"] if namespaces_allowed() else []
    detail = "; ".join(ways) or "neither root nor docker, and no user namespaces"
    return Finding(bool(ways), detail, f"Run as root, or: {engine.JOIN_GROUP}")


def docker_engine() -> Finding:
    """An engine that answers, not too old."""
    found = engine.version()
    if found is None:
        engine.require()
    oldest = ".".join(map(str, engine.OLDEST_ENGINE))
    fine = engine.numbers(found or "") >= engine.OLDEST_ENGINE
    return Finding(fine, f"{found}", f"Install Docker Engine {oldest} or newer")


def compose() -> Finding:
    """Compose, not too old."""
    command = engine.compose_command()
    if command is None:
        return Finding(False, "not found", _MAKE_SETUP)
    found = engine.compose_version_of(command) or ""
    fine = engine.numbers(found) >= engine.OLDEST_COMPOSE
    return Finding(fine, f"`{' '.join(command)}` {found}", "Install Docker Compose 1.29 or newer")


def images_current() -> Finding:
    """The node image was made from this very code."""
    return Finding(True, images.require())


def disk() -> Finding:
    """Room for images, wheels and the virtual environment."""
    docker = Path("/var/lib/docker")
    free = shutil.disk_usage(docker if docker.exists() else "/").free / _GIB
    return Finding(free >= _DISK_GIB, f"{free:.1f} GiB free", f"Free up {_DISK_GIB} GiB")


def memory() -> Finding:
    """Room for five processes that import torch."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    return Finding(size >= _MEMORY_GIB, f"{size:.1f} GiB", f"The demo needs {_MEMORY_GIB} GiB")


def processors() -> Finding:
    """Enough processors that paced workers keep their pace."""
    count = len(os.sched_getaffinity(0))
    fix = "Use fewer nodes, a longer `pace`, or `dilation`"
    return Finding(count >= _CPUS, f"{count} for the demo's 5 nodes", fix)


def guest() -> Finding:
    """A kernel for ``--guest``."""
    return Finding(True, f"User-mode Linux {installed.require().release} has netem: `--guest`")


def node_limits() -> Finding:
    """Where processes and memory of single nodes can be bounded without containers."""
    return Finding(True, f"control groups {cgroups.find()}")


def iperf3() -> Finding:
    """The program that makes cross traffic and records traces."""
    lacking = packages.missing(packages.TRAFFIC)
    detail = "not found: scenarios with `traffic` are refused" if lacking else "found"
    return Finding(not lacking, detail, "Run `make setup` as root, or: apt-get install iperf3")


def gpu() -> Finding:
    """An NVIDIA device, for nodes with ``device: cuda``."""
    found = has_gpu()
    detail = "found" if found else "none: nodes with `device: cuda` cannot run here"
    return Finding(found, detail, "Use `device: cpu`")


CHECKS = (
    Check("python", python_version),
    Check("environment", environment, venv.ensure),
    Check("privileges", privileges),
    Check("docker engine", docker_engine, engine.ensure),
    Check("docker compose", compose, engine.ensure),
    Check("images", images_current, images.ensure),
    Check("disk", disk),
    Check("memory", memory),
    Check("processors", processors, required=False),
    *NETWORK,
    Check("control groups", node_limits, required=False),
    Check("guest kernel", guest, lambda: packages.install(installed.GUEST), required=False),
    Check("iperf3", iperf3, lambda: packages.install(packages.TRAFFIC), required=False),
    Check("gpu", gpu, required=False),
)


def _group(number: int) -> str | None:
    """A group's name; a number need not have one."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return None


def _absent(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except ModuleNotFoundError:
        return True
