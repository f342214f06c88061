"""Commands in containers that wait for them, by the engine's own client."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from testbed.errors import MachineError

_PROGRAM = "docker"
_PATIENCE_S = 10.0
_LINE_BYTES = 60_000
"""The client reads no longer lines in a file of variables."""


def launch(
    container: str, command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command; the client's status is the command's. It does not end with its client: ``send`` ends it.

    Variables are handed over in a file that has no name, and what fits no line of one in the client's own environment:
    everybody may read a command line.
    """
    lines = {name: value for name, value in environment.items() if _fits_a_line(name, value)}
    others = {name: value for name, value in environment.items() if name not in lines}
    named = [part for name in others for part in ("--env", name)]
    with _unnamed("".join(f"{name}={value}\n" for name, value in lines.items())) as file:
        # A session of its own: Ctrl-C is the run's to hear.
        return subprocess.Popen(
            [_PROGRAM, "exec", "--env-file", f"/proc/self/fd/{file}", *named, container, *command],
            env={**os.environ, **others},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(file,),
        )


def _fits_a_line(name: str, value: str) -> bool:
    """Whether the client would read the same variable from a line of a file."""
    line = f"{name}={value}"
    plain = not line.startswith("#") and not any(mark in line for mark in "\r\n")
    return plain and len(os.fsencode(line)) < _LINE_BYTES and "\ufeff" not in name


@contextmanager
def _unnamed(text: str) -> Iterator[int]:
    """A descriptor of a file in memory that holds ``text``; whoever inherited it keeps it."""
    descriptor = os.memfd_create("variables")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(os.fsencode(text))
        yield descriptor
    finally:
        os.close(descriptor)


def send(container: str, number: int) -> None:
    """A signal to all processes of a container but its first; nothing happens where there is none, or no shell.

    Raises MachineError where the engine does not answer.
    """
    try:
        subprocess.run(
            [_PROGRAM, "exec", container, "sh", "-c", f"kill -{number} -1"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"the Docker engine did not signal {container} in {_PATIENCE_S:g} s"
        ) from None
