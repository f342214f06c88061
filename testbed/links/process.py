"""Starting this package's own modules as processes, wherever the package happens to be imported from."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import testbed

_libc = ctypes.CDLL(None, use_errno=True)
_SET_DEATH_SIGNAL = 1

SET_BY_US: set[str] = set()
"""Variables of this process's environment that are no choice of its user's."""

PACKAGE = Path(testbed.__file__).resolve().parent


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module with this interpreter, which takes nothing from the working directory."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(**extra: str) -> dict[str, str]:
    """This process's environment, in which the package is found from any directory."""
    known = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(PACKAGE.parent), *([known] if known else [])])
    return {**os.environ, "PYTHONPATH": path, **extra}


def set_default(name: str, value: str) -> None:
    """Set a variable that the user has not set, for this process and those that it starts itself."""
    if name not in os.environ:
        os.environ[name] = value
        SET_BY_US.add(name)


def die_with(parent: int) -> None:
    """Be killed when the parent dies; at once if it has already. After any change of user."""
    prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def effective_capabilities() -> int:
    """The capabilities that this process has now, a bit each."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def prctl(*arguments: int) -> None:
    """Change something about this process (prctl(2)). Raises OSError."""
    if _libc.prctl(*map(ctypes.c_ulong, [*arguments, *[0] * (5 - len(arguments))])) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl: {os.strerror(code)}")
