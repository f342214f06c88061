"""The listening end of ``testbed.mark``: a Unix socket for each node, in a folder that only the
nodes' user can enter.

The nodes' user may be another than this process's, who keeps the folder: he cannot put anything
else in a socket's place. Whoever connects and is somebody else (``SO_PEERCRED``) is not listened
to.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field, model_validator

MOST_BYTES = 1 << 16
"""Most bytes of one mark."""
MOST_WAITING, MOST_WAITING_BYTES = 100_000, 256 << 20
"""Marks of all nodes that nobody has taken yet, and about the memory that they take; what comes
then is left out."""
MOST_NONSENSE = 1000
"""So many lines that are no marks end a connection."""
MOST_CONNECTIONS = 256
"""Most connections of a node at a time, beside those that its processes need; more are closed."""
_HELLO_S = 10.0
"""How long whoever connects may take to say who he is."""
_FULL_S = 0.1
_CLOSED_S = 5.0
"""How long ``close`` waits for its threads, each of which has at most one line left to read."""
_CREDENTIALS = struct.Struct("3i")
"""A peer's credentials: process, user, group."""
_MARK_BYTES, _VALUE_BYTES, _PER_BYTE = 1000, 200, 2
"""Most bytes that a mark takes in memory: itself, each of its values, and each byte of its line."""

_Rank = Annotated[int, Field(ge=0, lt=1 << 31)]
_Name = Annotated[str, Field(max_length=200)]


class _Hello(BaseModel):
    rank: _Rank
    local_rank: _Rank


class Mark(BaseModel):
    """A line that ``testbed.mark`` sent."""

    what: Literal["begin", "phase", "end", "step"]
    ns: Annotated[int, Field(ge=0, lt=1 << 63)]
    """When, by the monotonic clock."""
    name: _Name | None = None
    number: Annotated[int, Field(ge=-(1 << 53), le=1 << 53)] | None = None
    values: Annotated[dict[_Name, float], Field(max_length=64)] = {}

    @model_validator(mode="after")
    def _complete(self) -> Mark:
        if self.what == "step" and self.number is None:
            raise ValueError("a step has a number")
        if self.what == "phase" and self.name is None:
            raise ValueError("a phase has a name")
        return self


class HeardMark(NamedTuple):
    """A mark, and whose it is."""

    node: str
    rank: int
    local_rank: int
    mark: Mark
    memory_bytes: int = 0


class _Waiting(queue.Queue[HeardMark]):
    """Marks that wait: no more, and none larger together, than there is room for."""

    memory_bytes = 0

    def _put(self, item: HeardMark) -> None:
        if self.memory_bytes + item.memory_bytes > MOST_WAITING_BYTES:
            raise queue.Full
        self.memory_bytes += item.memory_bytes
        super()._put(item)

    def _get(self) -> HeardMark:
        item = super()._get()
        self.memory_bytes -= item.memory_bytes
        return item


class MarkListener:
    """Hears every node. ``heard`` fills from any thread; whoever asked to begin waits for
    ``release``.

    ``user``: whose the nodes' processes are, as (user, group); this process's if not given.
    ``processes``: of a node, that may connect at the same time. ``folder``: where the sockets are
    to be, which is made; somewhere for temporary files if not given. ``left_out`` counts, by node,
    lines that were no marks, and marks that came faster than they were taken; ``strangers``:
    connections of other users.
    """

    def __init__(
        self,
        nodes: Iterable[str],
        user: tuple[int, int] | None = None,
        processes: int = 1,
        folder: Path | None = None,
    ) -> None:
        self._user, self._group = user or (os.geteuid(), os.getegid())
        self._most = MOST_CONNECTIONS + 2 * processes
        self._closed = False
        self.folder = folder or Path(tempfile.mkdtemp(prefix="narrows-marks-"))  # 0700
        if folder is not None:
            folder.mkdir(mode=0o700)
        if self._user != os.geteuid():
            os.chown(self.folder, -1, self._group)
            self.folder.chmod(0o750)
        self.heard: queue.Queue[HeardMark] = _Waiting(MOST_WAITING)
        self.left_out: Counter[str] = Counter()
        self.strangers = 0
        self._lock = threading.Lock()
        self._t0_ns: Callable[[str], int] | None = None
        """When t0 is, by a node's clock."""
        self._waiting: dict[int, tuple[str, socket.socket]] = {}
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._listeners = [self._listen(node) for node in nodes]

    def path(self, node: str) -> str:
        """Where a node's processes find it."""
        return str(self.folder / node)

    @property
    def waiting(self) -> set[int]:
        """The ranks that have asked to begin."""
        with self._lock:
            return set(self._waiting)

    def release(self, t0_ns: int, ahead_ns: Callable[[str], int] = lambda _: 0) -> None:
        """Tell all who wait, and whoever will ask, when t0 is. ``ahead_ns``: by how much a node's
        clock is ahead."""
        with self._lock:
            self._t0_ns = lambda node: t0_ns + ahead_ns(node)
            for node, connection in self._waiting.values():
                _answer(connection, self._t0_ns(node))

    def close(self) -> None:
        """Hear no more, and end all threads that did. Safe to call twice.

        A thread that reads a line while the interpreter ends would end the process with a signal.
        """
        with self._lock:
            self._closed = True
            threads = list(self._connections.values())
            for connection in (*self._listeners, *self._connections):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for listener in self._listeners:
            listener.close()
        give_up = time.monotonic() + _CLOSED_S
        for thread in threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _listen(self, node: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = Path(self.path(node))
        listener.bind(str(path))
        path.chmod(0o600)
        if self._user != os.geteuid():
            os.chown(path, self._user, self._group)
        listener.listen(128)
        threading.Thread(target=self._accept, args=(listener, node), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket, node: str) -> None:
        places = threading.Semaphore(self._most)
        while not self._closed:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed, or no descriptors are left
                time.sleep(_FULL_S)
                continue
            if _user_of(connection) != self._user:
                self.strangers += 1
                connection.close()
            elif not places.acquire(blocking=False):
                connection.close()
            else:
                self._begin_hearing(connection, node, places)

    def _begin_hearing(
        self, connection: socket.socket, node: str, places: threading.Semaphore
    ) -> None:
        thread = threading.Thread(target=self._hear, args=(connection, node, places), daemon=True)
        with self._lock:
            if not self._closed:
                with suppress(RuntimeError):  # there can be no more threads
                    thread.start()
                    self._connections[connection] = thread
                    return
        connection.close()
        places.release()

    def _hear(self, connection: socket.socket, node: str, places: threading.Semaphore) -> None:
        """Take a process's marks until it ends, says no hello, or sends too much nonsense."""
        nonsense = 0
        try:
            with connection, suppress(ValueError, OSError), connection.makefile("rb") as lines:
                connection.settimeout(_HELLO_S)
                who = _Hello.model_validate_json(lines.readline(MOST_BYTES))
                connection.settimeout(None)
                while nonsense < MOST_NONSENSE and (line := lines.readline(MOST_BYTES)):
                    if self._closed:
                        break
                    try:
                        mark = Mark.model_validate_json(line, strict=True)
                        size = _memory_bytes(line, mark)
                        self.heard.put_nowait(HeardMark(node, who.rank, who.local_rank, mark, size))
                    except (ValueError, queue.Full) as error:
                        nonsense += isinstance(error, ValueError)
                        with self._lock:
                            self.left_out[node] += 1
                        continue
                    if mark.what == "begin":
                        self._begin(node, who.rank, connection)
        finally:
            with self._lock:
                self._waiting = {
                    rank: each for rank, each in self._waiting.items() if each[1] != connection
                }
                del self._connections[connection]
            places.release()

    def _begin(self, node: str, rank: int, connection: socket.socket) -> None:
        with self._lock:
            self._waiting[rank] = node, connection
            if self._t0_ns is not None:
                _answer(connection, self._t0_ns(node))


def _memory_bytes(line: bytes, mark: Mark) -> int:
    return _MARK_BYTES + _VALUE_BYTES * len(mark.values) + _PER_BYTE * len(line)


def _user_of(connection: socket.socket) -> int:
    got = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(got)[1])


def _answer(connection: socket.socket, t0_ns: int) -> None:
    """Without waiting: who asks and asks and reads no answer gets none, and holds up nobody."""
    with suppress(OSError):
        connection.send(json.dumps({"ns": t0_ns}).encode() + b"\n", socket.MSG_DONTWAIT)
