"""Marks of a training script's own steps under ``testbed exec``: two lines, and no dependency.

    from testbed import mark
    …
    mark.step(loss=loss.item())

``step`` says that a step has ended, ``phase("backward")`` that another phase of it begins, and
``begin`` that this process is ready. Nothing happens where nobody listens, as outside the testbed.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time

__all__ = ["begin", "phase", "step"]


_WHERE = "NARROWS_MARKS"
"""In the environment: the path of a Unix socket."""


class _Line:
    """The connection to whoever listens. The first thing said is who speaks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: int | None = None
        self._socket: socket.socket | None = None
        self._steps = 0

    def say(self, what: str, **fields: object) -> None:
        """Send one mark; the listener's clock is this one (``CLOCK_MONOTONIC``)."""
        now_ns = time.monotonic_ns()
        with self._lock:
            if what == "step" and fields.get("number") is None:
                fields["number"] = self._steps + 1
            if what == "step":
                self._steps = int(str(fields["number"]))
            self._send({"what": what, "ns": now_ns, **fields})

    def ask(self, what: str) -> int | None:
        """Send one mark and wait for the answer; None where nobody listens."""
        with self._lock:
            self._send({"what": what, "ns": time.monotonic_ns()})
            if self._socket is None:
                return None
            try:
                return int(json.loads(self._socket.makefile("rb").readline())["ns"])
            except (OSError, ValueError):  # whoever listened has gone
                return None

    def _send(self, message: dict[str, object]) -> None:
        if self._process != os.getpid():  # never a parent's connection after a fork
            self._process, self._socket = os.getpid(), None
            self._connect()
        if self._socket is None:
            return
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._socket = None

    def _connect(self) -> None:
        path = os.environ.get(_WHERE)
        if not path:
            return
        ranks = {key: int(os.environ.get(key.upper(), "0")) for key in ("rank", "local_rank")}
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
            connection.sendall(json.dumps({"what": "hello", **ranks}).encode() + b"\n")
        except OSError:  # nobody listens, or has no room for another
            connection.close()
            return
        self._socket = connection


_line = _Line()


class _Phase:
    """A phase that has begun; as a context it also ends."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        _line.say("end", name=self._name)


def step(number: int | None = None, **values: float) -> None:
    """A step, and its last phase, has ended. ``number`` counts from 1; ``values``: results."""
    _line.say("step", number=number, values={name: float(value) for name, value in values.items()})


def phase(name: str) -> _Phase:
    """A phase begins, and the one before it ends; as a context it ends with the block."""
    _line.say("phase", name=name)
    return _Phase(name)


def begin() -> None:
    """This process is ready. Under ``--await-begin`` wait until all have said so."""
    at_ns = _line.ask("begin")
    while at_ns is not None and (left := at_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)
