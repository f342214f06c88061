"""Prometheus for observed runs: the program on this machine, or that of Debian's package, unpacked
in a folder of ours. Nothing is installed, and no service is started.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from testbed.errors import MachineError
from testbed.host.packages import CommandFailed, have, run, step
from testbed.host.paths import cache

PACKAGE = "prometheus"
_FIX = (
    "Run `testbed setup observe`, which unpacks Debian's package `prometheus`; or install "
    "Prometheus so that `prometheus` is on the path"
)


def program() -> Path | None:
    """Return the program: the one on the path, else the unpacked one, else None."""
    installed = shutil.which(PACKAGE)
    if installed is not None:
        return Path(installed)
    unpacked = cache(PACKAGE) / "usr/bin" / PACKAGE
    return unpacked if unpacked.is_file() else None


def require() -> Path:
    """Return the program. Raises MachineError where there is none."""
    path = program()
    if path is None:
        raise MachineError("there is no Prometheus on this machine for --observe", fix=_FIX)
    return path


def ensure() -> Path:
    """Return the program, unpacked from Debian's package if need be. Raises MachineError."""
    return program() or unpack()


def intended() -> list[str]:
    """Return what ``ensure`` may do, as root, beyond a folder of ours: a sentence, or none."""
    if program() is not None or not _can_unpack():
        return []
    return [
        "fetches the lists of packages (apt-get update), if by those that are here Debian's "
        "package `prometheus` cannot be had; it is unpacked, not installed"
    ]


def _can_unpack() -> bool:
    return have("apt-get") and have("dpkg-deb")


def unpack() -> Path:
    """Fetch Debian's package with apt-get, which checks its signature, and unpack it. Raises
    MachineError."""
    if not _can_unpack():
        raise MachineError("Prometheus is missing, and apt-get is not here to fetch it", fix=_FIX)
    home = cache(PACKAGE)
    with (
        step("fetching Debian's package of Prometheus"),
        tempfile.TemporaryDirectory(prefix=".new-", dir=home) as folder,
    ):
        package = _fetch(Path(folder))
        tree = Path(folder) / "tree"
        run(["dpkg-deb", "-x", str(package), str(tree)])
        shutil.rmtree(home / "usr", ignore_errors=True)
        (tree / "usr").rename(home / "usr")
    return require()


def _fetch(folder: Path) -> Path:
    # the user that apt takes for downloads may not be allowed to write here: root fetches itself
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "-o", f"Dir::Cache={folder}"]
    download = ["sh", "-c", 'cd "$0" && exec "$@"', str(folder), *command, "download", PACKAGE]
    try:
        run(download)
    except CommandFailed:
        if os.geteuid() != 0:
            raise
        run(["apt-get", "update", "-qq"])
        run(download)
    return next(folder.glob("*.deb"))
