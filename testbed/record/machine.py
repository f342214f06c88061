"""Facts about the machine that a result may depend on. Its name is not one of them."""

from __future__ import annotations

import gzip
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import testbed

_PACKAGES = (
    "docker", "matplotlib", "numpy", "prometheus-client", "pydantic", "pyroute2", "scikit-learn", "torch",
)  # fmt: skip
_GIT_SECONDS = 5
_EVERY_USER = ["0", "0", str(2**32 - 1)]
"""The one row of a user map that maps everybody: of a machine's own namespace."""


def machine() -> dict[str, Any]:
    """Versions, kernel, processor, memory, clock, and the commit if this is a checkout.

    What cannot be found out is None. Nothing is imported to ask for its version.
    """
    return {
        "versions": dict(versions()),
        "kernel": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpu": {"model": cpu_model(), "count": os.cpu_count(), "usable": _usable_cpus()},
        "memory_bytes": _memory_bytes(),
        "clock_source": _line(
            Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        ),
        "kernel_hz": _kernel_hz(),
        "user_namespace": _text(Path("/proc/self/uid_map")).split() != _EVERY_USER,
        "congestion_default": _line(Path("/proc/sys/net/ipv4/tcp_congestion_control")),
        "commit": _own_commit(),
    }


@cache
def versions() -> Mapping[str, str | None]:
    """Version of everything that takes part in a run, read once; None: not installed."""
    found: dict[str, str | None] = {
        "narrows": testbed.__version__, "python": platform.python_version(),
    }  # fmt: skip
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


@cache
def _own_commit() -> dict[str, Any] | None:
    """The commit of the code that this process runs, asked once: what is changed later is not what it has imported."""
    return commit(Path(testbed.__file__).parent.parent)


def commit(root: Path) -> dict[str, Any] | None:
    """``{"hash", "dirty"}`` of the git checkout whose top is ``root``; None if it is not one."""
    if not (root / ".git").exists():
        return None
    hash_, status = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain")
    return (
        None
        if hash_ is None
        else {"hash": hash_, "dirty": None if status is None else bool(status)}
    )


def _git(root: Path, *arguments: str) -> str | None:
    # The tree may belong to another user (a clone used through sudo): git would refuse to read it.
    command = ["git", "-c", f"safe.directory={root}", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str | None:
    """The processor's name, as its maker writes it."""
    match = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or None


def _memory_bytes() -> int | None:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _text(Path("/proc/meminfo")), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _kernel_hz() -> int | None:
    """The kernel's tick rate, where its configuration can be read."""
    text = _text(Path(f"/boot/config-{platform.release()}"))
    if not text:
        try:
            text = gzip.decompress(Path("/proc/config.gz").read_bytes()).decode(errors="replace")
        except OSError:
            return None
    match = re.search(r"^CONFIG_HZ=(\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else None


def _line(path: Path) -> str | None:
    return _text(path).strip() or None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
