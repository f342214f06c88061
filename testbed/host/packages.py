"""System packages: installed by apt-get for root on Debian and Ubuntu, otherwise named exactly;
and running programs.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MachineError

log = logging.getLogger("testbed.host")
_TAIL_LINES = 15


class CommandFailed(MachineError):
    """A program ended with an error; the message holds the end of what it wrote."""

    def __init__(self, command: Sequence[str], output: str, *, fix: str | None = None) -> None:
        self.command, self.output = list(command), output
        tail = "\n    ".join(output.strip().splitlines()[-_TAIL_LINES:])
        super().__init__(f"`{shlex.join(command)}` failed:\n    {tail}\n", fix=fix)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    data: bytes | None = None,
    timeout: float | None = None,
    fix: str | None = None,
) -> str:
    """Run ``command`` and return what it wrote (both streams).

    ``env`` is added to the environment and ``data`` given as standard input.
    Raises CommandFailed when it is missing, ends with another code than 0, or takes ``timeout`` s,
    and where something that is done side by side with it has failed.
    """
    if _FAILED.is_set():
        raise CommandFailed(command, "not begun: another part of the setup has failed", fix=fix)
    try:
        done = subprocess.run(
            command,
            check=False,
            env={**os.environ, **(env or {})},
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
        )
    except FileNotFoundError:
        raise CommandFailed(command, f"{command[0]}: command not found", fix=fix) from None
    except subprocess.TimeoutExpired:
        raise CommandFailed(command, f"no answer within {timeout:g} s", fix=fix) from None
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise CommandFailed(command, output, fix=fix)
    return output


def answer(command: Sequence[str], *, timeout: float = 20.0) -> str | None:
    """Return what ``command`` writes, stripped, or None when it cannot be run or fails."""
    try:
        return run(command, timeout=timeout).strip()
    except CommandFailed:
        return None


def have(program: str) -> bool:
    """Return whether ``program`` can be run; the directories of system programs count."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return shutil.which(program, path=path) is not None


def announce() -> None:
    """Have it written to standard error what is done here, in plain lines."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s", force=True)
    log.setLevel(logging.INFO)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce something that takes a while, and how long it took."""
    log.info("▸ %s …", title)
    began = time.monotonic()
    yield
    log.info("  %s: done in %.1f s", title, time.monotonic() - began)


_FAILED = threading.Event()


def side_by_side(*parts: Callable[[], object]) -> None:
    """Do ``parts`` at the same time. Raises the error of the first that fails, when the commands of
    the others have ended; they begin no more."""
    failed_before = _FAILED.is_set()
    try:
        with ThreadPoolExecutor(len(parts)) as pool:
            begun = [pool.submit(part) for part in parts]
            try:
                for each in as_completed(begun):
                    each.result()
            except BaseException:
                _FAILED.set()
                raise
    finally:
        if not failed_before:
            _FAILED.clear()


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
    """The packages that would be installed, as far as is known before lists are fetched."""
    return _choose(needs)


def install(needs: tuple[Need, ...]) -> None:
    """Install what is missing. Raises MachineError with the command where we may not."""
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
    with _APT, step(f"installing system packages for {names}"):
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        _fetch_lists()
        packages = _choose(wanted)  # again: only now the lists of packages are there
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=quiet)


_APT = threading.Lock()
"""Held while apt-get works: it refuses to do so twice at a time."""


@functools.cache
def _fetch_lists() -> None:
    run(["apt-get", "update", "-qq"])


def offer(needs: tuple[Need, ...], purpose: str) -> None:
    """Install what can be done without; where that fails, say what to do about it."""
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
