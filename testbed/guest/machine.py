"""The guest's kernel as a process of this host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import MachineError
from testbed.guest import installed, keeper, xstate
from testbed.process import PACKAGE, environment, module_command

CONSOLE = "console"
"""What the kernel and the programs before the command write, in the shared folder."""

_INIT = Path(__file__).with_name("init.sh")
_FIXED = (
    "root=/dev/root",
    "rootfstype=hostfs",
    "rootflags=/",
    "rw",
    "con=null",
    "con0=fd:0,fd:1",
    "panic=1",
    "quiet",
    "init=/bin/sh",
    "--",
)


@contextmanager
def booted(folder: Path, memory: int, disk: Path | None) -> Iterator[subprocess.Popen[bytes]]:
    """A kernel that boots, and does not outlive this process; killed at the end if it still runs.

    ``folder`` is shared with it, ``memory`` in bytes, ``disk`` an image whose changes go to ``folder``.
    Raises MachineError when it is not installed.
    """
    command = _command(folder, memory, disk)
    with (folder / CONSOLE).open("wb") as console:
        process = subprocess.Popen(
            module_command("testbed.guest.keeper", str(folder), *command),
            env=_environment(folder),
            stdin=subprocess.PIPE,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.communicate(keeper.END)


def _command(folder: Path, memory: int, disk: Path | None) -> list[str]:
    size = f"mem={memory >> 20}M"
    disks = [f"ubd0={folder}/changes,{disk}"] if disk else []
    arguments = [str(_INIT), str(folder), sys.executable, str(PACKAGE.parent)]
    program = installed.require().program
    return [program, size, *disks, f"uml_dir={folder}/", *_FIXED, *map(_quoted, arguments)]


def _environment(folder: Path) -> dict[str, str]:
    preload = {"LD_PRELOAD": str(xstate.library())} if xstate.needed() else {}
    return environment(TMPDIR=str(folder), **preload)


def _quoted(argument: str) -> str:
    """For the kernel's command line, which knows no escapes."""
    if '"' in argument:
        raise MachineError(
            f"the guest cannot be given a path with a quote in it: {argument}",
            fix="Rename the folder",
        )
    return f'"{argument}"'
