"""Nodes of ``netns`` and the commands in them, as forks of one process that has imported what they
need; and their logs, up to a bound: nodes write into pipes, not into the files themselves.

``Forker`` starts ``python -m testbed.fabric.fork_server``, which imports PyTorch once where nodes
train; each process is then a fork of it, a hundredth of a second after it was asked for. A request
travels over a socket, as a file in memory and the file for the process's output. All die with the
forking process, and that with the thread that started it.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from testbed.errors import ExperimentError, MachineError
from testbed.fabric.base import START_S
from testbed.fabric.file_view import Shown
from testbed.process import module_command, node_environment
from testbed.user_files import MOST_BYTES, PinnedFolder

MESSAGE_BYTES = 65_536
_END_S = 5.0
Imports = Literal["nothing", "testbed", "torch"]
"""Modules imported before the first fork: for commands, for nodes, for nodes that train."""


class ForkSetting(NamedTuple):
    """The setting of a node's processes: its name, its network, what it has of the host's files,
    its ``/etc/hosts``, and the folders of its control group; where it has none, what bounds each
    process (``topology.to_json``) of how many nodes. ``sizes``: of its own folders in memory, in
    bytes by path."""

    name: str
    netns: str
    view: Sequence[Shown]
    hosts: str
    groups: Sequence[str] = ()
    bounds: Mapping[str, int] | None = None
    nodes: int = 1
    sizes: Mapping[str, int] = {}


class Forked:
    """A forked process, with the part of ``subprocess.Popen`` that fabrics and jobs use."""

    def __init__(self, forker: Forker, pid: int, stdout: IO[bytes] | None = None) -> None:
        self.pid, self.stdout = pid, stdout
        self._forker = forker

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._forker.status(self.pid, 0.0)

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Exit status. Raises subprocess.TimeoutExpired."""
        status = self._forker.status(self.pid, timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status


class Forker:
    """Starts the forking process, ``variables`` its environment.

    To be made in a thread that lives as long as the nodes shall. The other methods may be called
    from any thread.
    """

    def __init__(self, variables: Mapping[str, str], imports: Imports) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        options = ["--parent", str(os.getpid()), "--channel", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                module_command("testbed.fabric.fork_server", *options, "--imports", imports),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**variables, "PYTHONUNBUFFERED": "1"},
                pass_fds=(theirs.fileno(),),
            )
        self._asking = threading.Lock()
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._known = threading.Condition()
        self._ended: dict[int, int] = {}
        self._over = False
        self._closing, self._closed = os.pipe()
        self._reader = threading.Thread(target=self._read, name="forker", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The id of the forking process itself."""
        return self._process.pid

    def node(
        self,
        setting: ForkSetting,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        output: IO[bytes],
    ) -> Forked:
        """Run ``testbed.runner.node_process`` with ``arguments`` in namespaces of its own. Raises
        ExperimentError and MachineError.

        ``variables``: what its environment has beside the forking process's.
        """
        own = {"arguments": list(arguments), "variables": dict(variables)}
        return self._start(output, kind="node", **setting._asdict(), **own)

    def room(self, setting: ForkSetting) -> Forked:
        """A node's namespaces for commands, and their first process; when it ends all do."""
        with Path(os.devnull).open("wb") as nothing:
            return self._start(nothing, kind="room", **setting._asdict())

    def command(
        self, room: Forked, command: Sequence[str], variables: Mapping[str, str], directory: Path
    ) -> Forked:
        """Run ``command`` in a room, its output in ``stdout``, with ``variables`` alone."""
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as stdout, os.fdopen(writing, "wb") as output:
            started = self._start(
                output,
                kind="command",
                room=room.pid,
                command=list(command),
                variables=dict(variables),
                directory=str(directory),
            )
            started.stdout = os.fdopen(os.dup(stdout.fileno()), "rb")
        return started

    def status(self, pid: int, timeout_s: float | None) -> int | None:
        """How a process has ended, waited for up to ``timeout_s``; None while it runs."""
        with self._known:
            self._known.wait_for(lambda: pid in self._ended or self._over, timeout_s)
            return self._ended.get(pid, -signal.SIGKILL if self._over else None)

    def close(self, *, at_once: bool = False) -> None:
        """End the forking process, and with it every process that is left. Safe to call twice.

        ``at_once``: without waiting until it has imported everything.
        """
        if self._closed >= 0:
            os.close(self._closed)
            self._closed = -1
            self._reader.join()
            os.close(self._closing)
            self._socket.close()
        if at_once:
            self._process.kill()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self, output: IO[bytes], **fields: Any) -> Forked:
        with self._asking, os.fdopen(os.memfd_create("request"), "r+b") as request:
            request.write(json.dumps(fields).encode())
            request.flush()
            request.seek(0)
            try:
                socket.send_fds(self._socket, [b"?"], [request.fileno(), output.fileno()])
                answer = self._answers.get(timeout=START_S)
            except (OSError, queue.Empty) as error:
                raise self._gone() from error
        if "pid" in answer:
            return Forked(self, answer["pid"])
        if "fix" in answer:
            raise MachineError(answer["error"], fix=answer["fix"])
        if "error" in answer:
            raise ExperimentError(answer["error"])
        raise self._gone()

    def _read(self) -> None:
        """In a thread of its own: answers and ends, until either side closes."""
        waiting = select.poll()
        for descriptor in (self._socket.fileno(), self._closing):
            waiting.register(descriptor, select.POLLIN)
        while True:
            text = b""
            if self._closing not in dict(waiting.poll()):
                with suppress(ConnectionError):
                    text = self._socket.recv(MESSAGE_BYTES)
            message: dict[str, Any] = json.loads(text) if text else {}
            if "ended" not in message:
                self._answers.put(message)
                if message:
                    continue
            with self._known:
                self._over = not message
                if message:
                    self._ended[message["ended"]] = message["status"]
                self._known.notify_all()
            if not message:
                return

    def _gone(self) -> ExperimentError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        status = self._process.returncode
        if status is None:
            return ExperimentError(
                f"no node could be started within {START_S:g} s (NARROWS_START_S gives more time)"
            )
        return ExperimentError(f"the process that nodes are forked from ended with status {status}")


_AHEAD: list[Forker] = []


@contextmanager
def ahead(wanted: bool) -> Iterator[None]:
    """Begin to import PyTorch for nodes that train, where that is ``wanted``, before it is known
    what they will do.

    To be entered in a thread that lives as long as the nodes shall. What ``take`` did not fetch
    ends with the context.
    """
    if wanted:
        _AHEAD.append(Forker(node_environment(), "torch"))
    try:
        yield
    finally:
        if (unused := take()) is not None:
            unused.close(at_once=True)


def take() -> Forker | None:
    """The forking process that was begun ahead, once; it imports what nodes need that train."""
    return _AHEAD.pop() if _AHEAD else None


_AT_ONCE_BYTES = 1 << 16
_LAST_WORDS_S = 1.0
"""From a process's end to that of its output, which children of it may hold open."""


class NodeLogs:
    """The logs in the folder that ``folder`` returns. ``most_bytes``: of each that are kept."""

    def __init__(self, folder: Callable[[], PinnedFolder], most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._readers: dict[str, threading.Thread] = {}

    @contextmanager
    def open(self, node: str) -> Iterator[IO[bytes]]:
        """Where a process of ``node`` that is started in the ``with`` block shall write. Raises
        OSError."""
        log = self._folder().append(f"{node}.log")
        reading, writing = os.pipe()
        reader = threading.Thread(target=self._copy, args=(reading, log), daemon=True)
        with os.fdopen(writing, "wb") as output:
            reader.start()
            self._readers[node] = reader
            yield output

    def settle(self, node: str) -> None:
        """Wait a moment for the last words of a node whose process has ended."""
        if (reader := self._readers.pop(node, None)) is not None:
            reader.join(_LAST_WORDS_S)

    def close(self) -> None:
        """The same for all nodes."""
        for node in list(self._readers):
            self.settle(node)

    def _copy(self, reading: int, log: IO[bytes]) -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe, log:
            room = max(0, self._most_bytes - os.fstat(log.fileno()).st_size)
            is_full = False
            while more := pipe.read(_AT_ONCE_BYTES):
                text = more[:room]
                room -= len(text)
                if len(text) < len(more) and not is_full:
                    is_full, text = True, text + self._end
                with suppress(OSError):  # a full disk ends no node
                    os.write(log.fileno(), text)

    @property
    def _end(self) -> bytes:
        return (
            f"\ntestbed: more than {self._most_bytes} bytes: what came after them was not kept\n"
        ).encode()
