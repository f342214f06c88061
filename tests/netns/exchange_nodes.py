"""Nodes of exchanges as processes of their own, forked from one that has imported what they need.

``exchange_nodes.py DESCRIPTOR`` is that one: for every plan that comes over the socket it forks a process, which enters the
plan's network namespace and takes part, with the socket that came with the plan as its input and output.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 16
_ENDS_S = 30.0


@dataclass
class Process:
    """One node, and what it has said."""

    name: str
    pidfd: int
    talk: socket.socket
    lines: list[dict[str, Any]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _ended: bool = False

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self.talk.makefile() as said, suppress(ConnectionResetError):
            for line in said:
                with self._changed:
                    self.lines.append(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def said(self, *kinds: str) -> dict[str, Any] | None:
        return next((line for line in self.lines if line["kind"] in kinds), None)

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]

    def until(self, *kinds: str, timeout_s: float) -> dict[str, Any] | None:
        """The first line of one of ``kinds``; None when it does not come."""
        with self._changed:
            self._changed.wait_for(lambda: self.said(*kinds) or self._ended, timeout_s)
        return self.said(*kinds)

    def until_step(self, step: int, timeout_s: float) -> bool:
        """Whether it gets through ``step``."""
        there = lambda: any(line["step"] >= step for line in self.all("step"))  # noqa: E731
        with self._changed:
            self._changed.wait_for(lambda: there() or self._ended, timeout_s)
        return there()

    def tell(self) -> None:
        """Let it go on."""
        with suppress(BrokenPipeError):
            self.talk.sendall(b"\n")

    def signal(self, number: signal.Signals) -> None:
        """Raises ProcessLookupError when it has ended."""
        signal.pidfd_send_signal(self.pidfd, number)

    @property
    def alive(self) -> bool:
        return not select.select([self.pidfd], [], [], 0.0)[0]

    def ends(self, timeout_s: float = _ENDS_S) -> bool:
        """Whether it has ended within that time."""
        return bool(select.select([self.pidfd], [], [], timeout_s)[0])

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        assert self.ends()
        self._reader.join(_ENDS_S)
        self.talk.close()
        os.close(self.pidfd)


class Nodes:
    """Starts processes; ``close`` when none is to be started any more."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking = threading.Lock()
        program = [sys.executable, str(Path(__file__)), str(theirs.fileno())]
        self._server = subprocess.Popen(program, pass_fds=[theirs.fileno()])
        theirs.close()

    def start(self, name: str, netns: str, plan: dict[str, Any]) -> Process:
        """A process that takes part as ``plan`` says."""
        ours, theirs = socket.socketpair()
        with self._asking:
            told = json.dumps({"netns": netns, **plan}).encode()
            socket.send_fds(self._line, [told], [theirs.fileno()])
            theirs.close()
            pid = int(self._line.recv(64))
            pidfd = os.pidfd_open(pid)  # it waits for the line below: the number is its own
        ours.sendall(b"\n")
        return Process(name, pidfd, ours)

    def close(self) -> None:
        self._line.close()
        self._server.wait(_ENDS_S)


def _serve(line: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ends is nobody's to wait for
    while True:
        told, descriptors, _, _ = socket.recv_fds(line, _MOST_BYTES, 1)
        if not told:
            return
        (descriptor,) = descriptors
        pid = os.fork()
        if pid == 0:
            line.close()
            _become(json.loads(told), descriptor)
        os.close(descriptor)
        line.send(str(pid).encode())


def _become(plan: dict[str, Any], descriptor: int) -> None:
    """Be the node that ``plan`` describes, and end."""
    import exchange_peer

    from testbed.links.network import namespaces

    status = 1
    try:
        os.dup2(descriptor, 0)
        os.dup2(descriptor, 1)
        os.close(descriptor)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stdin.readline()
        namespaces.enter(plan["netns"])
        exchange_peer.take_part_as(plan)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    import exchange_peer as _preloaded

    del _preloaded
    with socket.socket(fileno=int(sys.argv[1])) as _line:
        _serve(_line)
