"""The listening end of ``testbed.mark``: a Unix socket for each node, in a folder that its processes can reach."""

from __future__ import annotations

import json
import queue
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

MOST_BYTES = 1 << 16
"""Of one mark."""


class Heard(NamedTuple):
    """A mark, and whose it is. ``message`` is what ``testbed.mark`` sent."""

    node: str
    rank: int
    local_rank: int
    message: dict[str, Any]


class Hearing:
    """Hears every node. ``heard`` fills from any thread; whoever asked to begin waits for ``release``."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="narrows-marks-"))
        self.folder.chmod(0o755)
        self.heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._t0_ns: int | None = None
        self._waiting: dict[int, socket.socket] = {}
        self._listeners = [self._listen(node) for node in nodes]

    def path(self, node: str) -> str:
        """Where a node's processes find it."""
        return str(self.folder / node)

    @property
    def waiting(self) -> set[int]:
        """The ranks that have asked to begin."""
        with self._lock:
            return set(self._waiting)

    def release(self, t0_ns: int) -> None:
        """Tell all who wait, and whoever will ask, when t0 is."""
        with self._lock:
            self._t0_ns = t0_ns
            for one in self._waiting.values():
                _answer(one, t0_ns)

    def close(self) -> None:
        """Hear no more."""
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _listen(self, node: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.path(node))
        Path(self.path(node)).chmod(0o666)
        listener.listen(128)
        threading.Thread(target=self._accept, args=(listener, node), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket, node: str) -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._hear, args=(one, node), daemon=True).start()

    def _hear(self, one: socket.socket, node: str) -> None:
        """A process's marks until it ends. Who says something else is not listened to any more."""
        with one, suppress(ValueError, KeyError, TypeError, OSError):
            lines = one.makefile("rb")
            hello = json.loads(lines.readline(MOST_BYTES))
            rank, local_rank = int(hello["rank"]), int(hello["local_rank"])
            while line := lines.readline(MOST_BYTES):
                message = json.loads(line)
                self.heard.put(Heard(node, rank, local_rank, message))
                if message["what"] == "begin":
                    self._begin(rank, one)

    def _begin(self, rank: int, one: socket.socket) -> None:
        with self._lock:
            self._waiting[rank] = one
            if self._t0_ns is not None:
                _answer(one, self._t0_ns)


def _answer(one: socket.socket, t0_ns: int) -> None:
    with suppress(OSError):
        one.sendall(json.dumps({"ns": t0_ns}).encode() + b"\n")
