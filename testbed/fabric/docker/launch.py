"""Commands in containers that wait for them, by the engine's own client."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from testbed.errors import MachineError

_PROGRAM = "docker"
_PATIENCE_S = 10.0


def launch(
    container: str, command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command; the client's status is the command's. It does not end with its client: ``send`` ends it."""
    variables = [part for item in environment.items() for part in ("--env", "=".join(item))]
    # A session of its own: Ctrl-C is the run's to hear.
    return subprocess.Popen(
        [_PROGRAM, "exec", *variables, container, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


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
