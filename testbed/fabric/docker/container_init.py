"""The first process of a container's node: it outlives the node's process, and with it the links
do.

A container's network ends with its last process. So that a node can be killed and started again
with the same links, its node is a child of this process, which does both when it is told by a
signal. ``python -m testbed.fabric.docker.container_init`` takes the options of
``testbed.runner.node_process``; with ``--listen`` before them it takes requests, too, at a socket
that has no file: whoever may enter the node's network can connect to it, from any host's agent.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from select import select

from testbed.process import module_command
from testbed.topology import NODE_ACTIONS_SOCKET

KILL, START = "SIGUSR1", "SIGUSR2"
"""Signals to send: the first kills the node and all it has started; the second starts it again."""
LISTEN = "--listen"

_HEARD = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGCHLD)
_SIGNAL_OFFSET = 128
_REQUEST_S, _REQUEST_BYTES = 1.0, 64


class Keeper:
    """Keeps one node's process. ``arguments``: the node's options."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._command = module_command("testbed.runner.node_process", *arguments)
        self._node: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        """Exit code of this process, once it is known."""
        self._actions = {
            "kill": self._kill,
            "restart": self._start,
            "pause": self._pause,
            "resume": self._resume,
        }

    def serve(self, requests: socket.socket | None = None) -> int:
        """Until the node ends by itself, or the container is stopped; returns the exit code."""
        signals = _signal_numbers()
        sources: list[int | socket.socket] = [signals] if requests is None else [signals, requests]
        self._start()
        while self._code is None:
            ready, _, _ = select(sources, [], [])
            if signals in ready:
                for number in os.read(signals, _REQUEST_BYTES):
                    self._on_signal(number)
            if requests is not None and requests in ready:
                self._answer(requests.accept()[0])
        return self._code

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGTERM:
            self._kill()
            self._code = 0
        elif number == signal.SIGUSR1:
            self._kill()
        elif number == signal.SIGUSR2:
            self._start()
        elif self._node is not None and (code := self._node.poll()) is not None:
            self._code = code if code >= 0 else _SIGNAL_OFFSET - code

    def _answer(self, connected: socket.socket) -> None:
        """Do what a connection asks for; the answer comes when it is done."""
        with connected, suppress(OSError):
            connected.settimeout(_REQUEST_S)
            action = connected.recv(_REQUEST_BYTES).decode(errors="replace")
            if action in self._actions:
                self._actions[action]()
                connected.sendall(action.encode())

    def _start(self) -> None:
        if self._node is None:
            self._node = subprocess.Popen(self._command, start_new_session=True)

    def _kill(self) -> None:
        if self._node is not None:
            self._signal(signal.SIGKILL)
            self._node.wait()
            self._node = None

    def _pause(self) -> None:
        """Until the node's process has stopped, which it does not before its disk answers it."""
        if self._node is not None:
            self._signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._node.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._node is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._node.pid, number)


def _signal_numbers() -> int:
    """A descriptor from which the numbers of signals can be read, a byte each."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    for number in _HEARD:
        signal.signal(number, lambda *_: None)
    return readable


def listener() -> socket.socket:
    """The socket for requests, in this process's network. Raises OSError where it is taken."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(NODE_ACTIONS_SOCKET)
    listening.listen()
    return listening


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[:1] == [LISTEN]:
        sys.exit(Keeper(given[1:]).serve(listener()))
    sys.exit(Keeper(given).serve())
