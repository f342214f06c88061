"""Running programs, and telling the user what takes time."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from testbed.errors import MachineError

log = logging.getLogger("testbed.setup")
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
    Raises CommandFailed when it is missing, ends with another code than 0, or takes ``timeout`` s.
    """
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
    """What ``command`` writes, stripped, or None when it cannot be run or fails."""
    try:
        return run(command, timeout=timeout).strip()
    except CommandFailed:
        return None


def have(program: str) -> bool:
    """Whether ``program`` can be run; the directories of system programs count."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return shutil.which(program, path=path) is not None


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce something that takes a while, and how long it took."""
    log.info("▸ %s …", title)
    began = time.monotonic()
    yield
    log.info("  done in %.1f s", time.monotonic() - began)
