"""System packages: installed by apt-get for root on Debian and Ubuntu, otherwise named exactly."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MachineError
from testbed.setup.command import answer, have, log, run, step


@dataclass(frozen=True, slots=True)
class Need:
    """Something of the operating system. ``packages``: the first one that exists provides it."""

    name: str
    met: Callable[[], bool]
    packages: tuple[str, ...]


def _compose() -> bool:
    return have("docker-compose") or answer(["docker", "compose", "version"]) is not None


def _venv() -> bool:
    return importlib.util.find_spec("ensurepip") is not None


def _cgroups() -> bool:
    """Mounted, or mountable by the program that ``engine`` runs where no init system does it."""
    mounted = " cgroup" in Path("/proc/mounts").read_text(errors="replace")
    return mounted or Path("/run/systemd/system").is_dir() or have("cgroupfs-mount")


_OWN_VENV = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"

PYTHON = (Need("python's venv module", _venv, (_OWN_VENV, "python3-venv")),)
ENGINE = (
    Need("Docker engine", lambda: have("dockerd"), ("docker.io",)),
    Need("docker command", lambda: have("docker"), ("docker-cli", "docker.io")),
    Need(
        "Docker Compose", _compose, ("docker-compose-v2", "docker-compose-plugin", "docker-compose")
    ),
    Need("control groups", _cgroups, ("cgroupfs-mount",)),
    Need("iproute2", lambda: have("ip"), ("iproute2",)),
)
TRAFFIC = (Need("iperf3", lambda: have("iperf3"), ("iperf3",)),)
"""Cross traffic of scenarios, and recording traces."""
DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""Whose signatures the base image's packages must bear."""
BASE_IMAGE = (
    Need("debootstrap", lambda: have("debootstrap"), ("debootstrap",)),
    Need("Debian's archive keys", DEBIAN_KEYS.exists, ("debian-archive-keyring",)),
)


def missing(needs: tuple[Need, ...]) -> list[Need]:
    """The needs that are not met."""
    return [need for need in needs if not need.met()]


def names(needs: list[Need]) -> list[str]:
    """The packages that would be installed, as far as that is known before their lists are fetched."""
    return _choose(needs)


def install(needs: tuple[Need, ...]) -> None:
    """Install what is missing. Raises MachineError with the exact command where that is not ours to do."""
    wanted = missing(needs)
    if not wanted:
        return
    names = " and ".join(need.name for need in wanted)
    command = f"apt-get install -y {' '.join(_choose(wanted))}"
    if not have("apt-get"):
        raise MachineError(
            f"missing: {names}", fix=f"Install it; on Debian or Ubuntu: `sudo {command}`"
        )
    if os.geteuid() != 0:
        raise MachineError(
            f"missing: {names}", fix=f"Run `sudo apt-get update && sudo {command}`, then this again"
        )
    with step(f"installing system packages for {names}"):
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-qq"], env=quiet)
        packages = _choose(wanted)  # again: only now the lists of packages are there
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=quiet)


def offer(needs: tuple[Need, ...], purpose: str) -> None:
    """Install what is missing and can be done without: where that fails, say what to do about it."""
    try:
        install(needs)
    except MachineError as error:
        log.info("  left out, only needed for %s: %s", purpose, error)


def _choose(needs: list[Need]) -> list[str]:
    chosen = [next(filter(_exists, need.packages), need.packages[-1]) for need in needs]
    return list(dict.fromkeys(chosen))


def _exists(package: str) -> bool:
    policy = answer(["apt-cache", "policy", package]) or ""
    return "Candidate:" in policy and "Candidate: (none)" not in policy
