"""Booting guests from tests, and seeing what they left."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path

from testbed.host.uml.inside import ORDER, OUTPUT

SHARED_MEMORY = Path("/dev/shm")
MARK = "NARROWS_TEST_GUESTS"
OURS = os.environ[MARK] = secrets.token_hex(8)
"""In the environment of every guest of these tests: others may boot guests at the same time."""
_FOLDER = re.compile(r"uml_dir=([^\0]+)/\0")


def guest(*arguments: str) -> list[str]:
    """The command line that runs something in a guest."""
    return [sys.executable, "-m", "testbed.host.uml", "--memory", "1", *arguments]


def boot(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run something in a guest."""
    return subprocess.run(guest(*arguments), capture_output=True, text=True, check=False)


def started(command: list[str]) -> tuple[subprocess.Popen[str], Path]:
    """A guest that has written something, and the folder that it shares."""
    before = folders()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        for folder in folders() - before:
            if written(folder):
                return process, folder
        time.sleep(0.05)
    raise AssertionError(process.communicate()[1])


def written(folder: Path) -> str:
    """What a guest's command has written so far."""
    output = folder / OUTPUT
    return output.read_text() if output.exists() else ""


def until_written(process: subprocess.Popen[str], folder: Path, text: str) -> None:
    """Wait for it, while the guest runs."""
    give_up = time.monotonic() + 60
    while text not in written(folder):
        assert process.poll() is None and time.monotonic() < give_up
        time.sleep(0.02)


def until_gone(patience_s: float = 10.0) -> None:
    """Wait until there is no folder of a guest of ours any more, and no kernel without its folder."""
    give_up = time.monotonic() + patience_s
    while left := [*folders(), *(kernel for kernel in kernels() if not kernel.exists())]:
        assert time.monotonic() < give_up, left
        time.sleep(0.05)


def folders() -> set[Path]:
    """What our guests share with this host at the moment."""
    return {path for path in SHARED_MEMORY.glob("narrows-guest-*") if _ours(path)}


def kernels() -> set[Path]:
    """The folders that the guest kernels on this host share with it."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if _runs(process) and (match := _FOLDER.search((process / "cmdline").read_text())):
                found.add(Path(match[1]))
        except OSError:
            continue
    return found


def _ours(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / ORDER).read_text())["environment"].get(MARK) == OURS)
    except (OSError, ValueError):  # it is being made, or removed
        return False


def _runs(process: Path) -> bool:
    """What has ended and was not buried yet does not."""
    return (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
