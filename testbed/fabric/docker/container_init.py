"""The first process of a host's or worker's container: it outlives the node's process, and with it
the links do.

A container's network ends with its last process. So that a node can be killed and started again
with the same links, its node is a child of this process, which does both when it is told by a
signal. ``python -m testbed.fabric.docker.container_init`` takes the options of
``testbed.runner.node_process``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from testbed.process import module_command

KILL, START = "SIGUSR1", "SIGUSR2"
"""Signals to send: the first kills the node and all it has started; the second starts it again."""

_HEARD = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGCHLD)
_SIGNAL_OFFSET = 128


class Keeper:
    """Keeps one node's process. ``arguments``: the node's options."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._command = module_command("testbed.runner.node_process", *arguments)
        self._node: subprocess.Popen[bytes] | None = None

    def serve(self) -> int:
        """Until the node ends by itself, or the container is stopped; returns the exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        self._start()
        while True:
            heard = signal.sigwait(_HEARD)
            if heard == signal.SIGTERM:
                self._kill()
                return 0
            if heard == signal.SIGUSR1:
                self._kill()
            elif heard == signal.SIGUSR2 and self._node is None:
                self._start()
            elif self._node is not None and (code := self._node.poll()) is not None:
                return code if code >= 0 else _SIGNAL_OFFSET - code

    def _start(self) -> None:
        self._node = subprocess.Popen(
            self._command,
            start_new_session=True,
            # Safe: this process has no other thread.
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD),  # noqa: PLW1509
        )

    def _kill(self) -> None:
        if self._node is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._node.pid, signal.SIGKILL)
            self._node.wait()
            self._node = None


if __name__ == "__main__":
    sys.exit(Keeper(sys.argv[1:]).serve())
