"""The disk of a guest with a Docker engine: an ext4 image that holds the node image, made once for each of them.

It is filled by a second engine on this host, which works on the mounted image: some ten seconds, where loading the
node image inside the guest would take minutes. Guests share it; what they change goes to a file of their own.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from testbed.errors import MachineError
from testbed.process import environment, module_command
from testbed.setup import images
from testbed.setup.command import CommandFailed, run, step
from testbed.setup.paths import BUILD, cache

_SUFFIX = ".ext4"
_BYTES = 16 * 2**30
"""Sparse: it takes up what the node image takes."""


def ensure() -> Path:
    """The disk with the current node image; only making it takes the host's engine.

    Raises MachineError where it is not there and cannot be made.
    """
    tag = images.tags().node
    return _made(tag) or _make(tag)


def _name(tag: str) -> str:
    """By what the image is made from, which its tag says: anybody can tell, also without an engine to ask."""
    return f"docker-{tag.rpartition(':')[2]}{_SUFFIX}"


def _made(tag: str) -> Path | None:
    folders = (BUILD / "guest", cache("guest"))
    found = (folder / _name(tag) for folder in folders)
    return next((path for path in found if os.access(path, os.R_OK)), None)


def _make(tag: str) -> Path:
    if os.geteuid() != 0:
        raise MachineError(
            "the guest's disk with the node image has not been made, and making it needs root",
            fix="Run `sudo make guest` once, or use --fabric netns, which needs no disk",
        )
    images.require()
    final = cache("guest") / _name(tag)
    with (
        step("making the guest's disk with the node image"),
        tempfile.TemporaryDirectory(prefix="narrows-disk-", dir=final.parent) as name,
    ):
        draft = Path(name) / "disk"
        draft.touch()
        os.truncate(draft, _BYTES)
        run(["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(draft)])
        _fill(draft, Path(name), tag)
        for older in final.parent.glob(f"docker-*{_SUFFIX}"):
            older.unlink(missing_ok=True)  # a guest that still uses it keeps it
        draft.rename(final)
    return final


def _fill(disk: Path, folder: Path, tag: str) -> None:
    """In a process of its own, whose mounts end with it."""
    command = module_command("testbed.guest.fill", str(disk), str(folder), tag)
    done = subprocess.run(
        command,
        check=False,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise CommandFailed(command, done.stdout.decode(errors="replace"))
