"""A Docker engine inside the guest, on the disk that the guest was given."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from testbed.errors import MachineError
from testbed.process import mount
from testbed.setup import engine as setup_engine

_DISK = "/dev/ubda"
_DATA = Path("/run/docker-data")
_LOG = Path("/run/dockerd.log")
_CGROUPS = Path("/sys/fs/cgroup")
_SETTINGS = Path("/etc/docker")
"""The host's engine's: they are not meant for this one, and its key is not for everybody to read."""
_WAIT_S = 120.0
_TAIL = 1500
OPTIONS = (
    "--iptables=false",
    "--ip6tables=false",
    "--ip-forward=false",
    "--ip-masq=false",
    "--bridge=none",
)
"""Runs make their own networks, and these lead nowhere."""


def start() -> None:
    """Start ``dockerd`` and wait until it answers. Raises MachineError."""
    _mount_control_groups()
    if _SETTINGS.is_dir():
        mount("settings", _SETTINGS, "tmpfs", 0, "mode=755")
    _DATA.mkdir()
    mount(_DISK, _DATA, "ext4", 0)
    with _LOG.open("wb") as log:
        process = subprocess.Popen(
            ["dockerd", f"--data-root={_DATA}", *OPTIONS],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + _WAIT_S
    while setup_engine.version() is None:
        if process.poll() is not None or time.monotonic() > deadline:
            said = _LOG.read_text(errors="replace")[-_TAIL:].strip()
            raise MachineError(
                f"the guest's Docker engine did not start: {said}", fix="Use --fabric netns"
            )
        time.sleep(0.3)


def _mount_control_groups() -> None:
    """One hierarchy per controller, which every version of the engine takes."""
    mount("cgroups", _CGROUPS, "tmpfs", 0, "mode=755")
    lines = Path("/proc/cgroups").read_text().splitlines()[1:]
    for name in (fields[0] for fields in map(str.split, lines) if fields[3] == "1"):
        folder = _CGROUPS / name
        folder.mkdir()
        mount(name, folder, "cgroup", 0, name)
