"""Booting guests from tests, and seeing what they left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def guest(*arguments: str) -> list[str]:
    """The command line that runs something in a guest."""
    return [sys.executable, "-m", "testbed.guest", "--memory", "1", *arguments]


def boot(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run something in a guest."""
    return subprocess.run(guest(*arguments), capture_output=True, text=True, check=False)


def kernels() -> set[str]:
    """The processes of guest kernels on this host."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().startswith("linux.uml") and _runs(path.parent):
                found.add(path.parent.name)
        except OSError:
            continue
    return found


def folders() -> set[Path]:
    """What guests share with this host at the moment."""
    return set(SHARED_MEMORY.glob("narrows-guest-*"))


def _runs(process: Path) -> bool:
    """What has ended and was not buried yet does not."""
    return (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
