"""The first process of a container's node: it outlives the node's process, and with it the links
do.

A container's network ends with its last process. So that a node can be killed and started again
with the same links, its node is a child of this process, which does both when it is told by a
signal. ``python -m testbed.fabric.docker.container_init`` takes the options of
``testbed.runner.node_process``; with ``--listen`` before them it takes requests, too, at a socket
that has no file: whoever may enter the node's network can connect to it, from any host's agent.

With ``--commands FOLDER SECONDS`` it has no node's process: it starts commands in that folder, on a
host whose engine the controller cannot ask. ``attach`` brings it a connection to the controller,
within so many seconds, and over this go frames of a kind, a number and bytes.
"""

from __future__ import annotations

import errno
import io
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO

from testbed.process import gain_no_privileges, module_command
from testbed.topology import NODE_ACTIONS_SOCKET

KILL, START = "SIGUSR1", "SIGUSR2"
"""Signals to send: the first kills the node and all it has started; the second starts it again."""
LISTEN, COMMANDS = "--listen", "--commands"
MARKS_PATH = "/tmp/.narrows-marks"
"""Where commands' processes find the listener of their marks, in their container."""
OUTPUT_PATH = "/output"
"""Where they put what is to be kept."""
FILES, LAUNCH, PRINTED, ENDED, SIGNAL, OPENED, MARKS, CLOSED, KEEP, KEPT = range(10)
"""Kinds of frames: the working folder's files, as an archive, and its answer, what went wrong; a
command to start, its output (nothing: its end), its exit status; a signal to all; a connection for
marks, what it carries, and its end; that all stays when the connection ends; how many bytes are
taken of what is to be kept, and its answer, an archive (of nothing where it is larger)."""
_HEARD = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM)
_SIGNAL_OFFSET = 128
_REQUEST_S, _REQUEST_BYTES = 1.0, 64
_FRAME = struct.Struct("!BII")
"""Kind, number, and how many bytes follow."""
_CHUNK, _MOST_BYTES = 1 << 16, 320 << 20
"""Bytes that are read at once, and most bytes of a frame."""
_MOST_CONNECTIONS = 4096
_NOT_FOUND, _NOT_STARTED = 127, 126
"""The exit statuses of shells for what cannot be started."""


def send_frame(connected: socket.socket, kind: int, number: int, data: bytes = b"") -> None:
    """Send a frame, without a copy of what it carries. Raises OSError."""
    more = socket.MSG_MORE if data else 0  # else the data would wait for an answer to the header
    connected.sendall(_FRAME.pack(kind, number, len(data)), more)
    connected.sendall(data)


def take_frame(connected: socket.socket) -> tuple[int, int, bytes] | None:
    """The next frame: kind, number, bytes; None when the connection has ended, or says nonsense."""
    if (header := _exactly(connected, _FRAME.size)) is None:
        return None
    kind, number, size = _FRAME.unpack(header)
    data = _exactly(connected, size) if size <= _MOST_BYTES else None
    return None if data is None else (kind, number, data)


def _exactly(connected: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            more = connected.recv(min(size - len(data), 1 << 20))
        except OSError:
            return None
        if not more:
            return None
        data += more
    return bytes(data)


class Keeper:
    """Keeps one node's process. ``arguments``: the node's options."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._command = module_command("testbed.runner.node_process", *arguments)
        self._node: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        """Exit code of this process, once it is known."""
        self._sources = selectors.DefaultSelector()
        self._given: list[int] = []
        """Descriptors that came with the last request."""
        self._actions = {
            "kill": self._kill,
            "restart": self._start,
            "pause": self._pause,
            "resume": self._resume,
        }

    def serve(self, requests: socket.socket | None = None) -> int:
        """Until the node ends by itself, or the container is stopped; returns the exit code.

        Nothing that it starts gains a privilege: a swarm's engine is not told so by the stack file.
        """
        gain_no_privileges()
        signals = _signal_numbers()
        self._hear(signals, partial(self._take_signals, signals))
        if requests is not None:
            self._hear(requests, partial(self._answer, requests))
        self._start()
        while self._code is None:
            for key, _ in self._sources.select():
                if self._sources.get_map().get(key.fd) is key:  # not closed meanwhile
                    key.data()
        return self._code

    def _hear(self, source: int | socket.socket, take: Callable[[], None]) -> None:
        self._sources.register(source, selectors.EVENT_READ, take)

    def _take_signals(self, signals: int) -> None:
        for number in os.read(signals, _REQUEST_BYTES):
            self._on_signal(number)

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

    def _answer(self, requests: socket.socket) -> None:
        """Do what the next connection asks for; the answer comes when it is done."""
        with suppress(OSError), requests.accept()[0] as connected:
            connected.settimeout(_REQUEST_S)
            text, self._given, _, _ = socket.recv_fds(connected, _REQUEST_BYTES, 1)
            try:
                action = text.decode(errors="replace")
                if action in self._actions:
                    self._actions[action]()
                    connected.sendall(action.encode())
            finally:
                while self._given:
                    os.close(self._given.pop())

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


class CommandKeeper(Keeper):
    """Keeps a node for commands, which start in ``folder``; it ends where no controller attaches
    for ``attach_s``. Raises RuntimeError where it is not the first process of its container: a
    signal to all would be one to everybody's."""

    def __init__(self, folder: str, attach_s: int) -> None:
        if os.getpid() != 1:
            raise RuntimeError("commands are kept by a container's first process alone")
        super().__init__(())
        self._folder, self._attach_s = folder, attach_s
        self._actions = {
            "attach": self._attach,
            "kill": partial(self._signal, signal.SIGKILL),
            "pause": self._pause,
            "resume": partial(self._signal, signal.SIGCONT),
        }
        self._controller: socket.socket | None = None
        self._stays = False
        self._processes: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        """Numbers and processes, by process id."""
        self._connections: dict[int, socket.socket] = {}
        """For marks, by number."""
        self._numbers = count(1)

    def _on_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGALRM):
            self._code = 0
        elif number == signal.SIGCHLD:
            self._reap(os.WNOHANG)

    def _reap(self, options: int) -> None:
        """Take in all that have ended; with no options, wait until all have."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, options))[0]:
                self._end(ended[0], os.waitstatus_to_exitcode(ended[1]))

    def _end(self, pid: int, status: int) -> None:
        """Tell of a command's end; of what one has left behind nobody is told."""
        if pid in self._processes:
            number, process = self._processes.pop(pid)
            process.returncode = status
            self._say(ENDED, number, str(status).encode())

    def _start(self) -> None:
        """Listen to marks, and for a while to who attaches: it may have died meanwhile."""
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(MARKS_PATH)
        listening.listen(_REQUEST_BYTES)
        self._hear(listening, partial(self._open, listening))
        signal.alarm(self._attach_s)

    def _attach(self) -> None:
        """Obey the controller at the other end of the descriptor that came, until it ends."""
        if self._controller is None and self._given:
            self._controller = socket.socket(fileno=self._given[0])
            self._given.clear()  # not to be closed
            signal.alarm(0)
            self._controller.setblocking(True)
            self._hear(self._controller, partial(self._obey, self._controller))

    def _obey(self, controller: socket.socket) -> None:
        if (frame := take_frame(controller)) is None:
            self._sources.unregister(controller)
            self._code = None if self._stays else 0
            return
        kind, number, data = frame
        if kind == FILES:
            self._say(FILES, 0, self._unpack(data).encode())
        elif kind == LAUNCH:
            self._launch(number, data)
        elif kind == SIGNAL:
            self._signal(number)
        elif kind == KEPT:
            self._say(KEPT, 0, self._kept(number))
        elif kind == KEEP:
            self._stays = True
        elif number in self._connections:
            self._answer_marks(number, data if kind == MARKS else b"")

    def _unpack(self, data: bytes) -> str:
        """Return what went wrong, or nothing."""
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                archive.extraction_filter = getattr(tarfile, "tar_filter", None)  # since 3.11.4
                archive.extractall(self._folder)
        except (OSError, tarfile.TarError) as error:
            return str(error)
        return ""

    def _kept(self, most_bytes: int) -> bytes:
        """End what commands have left behind, which may still write; then read what is kept."""
        self._signal(signal.SIGKILL)
        self._reap(0)
        buffer = io.BytesIO()

        def bounded(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            if buffer.tell() + entry.size > most_bytes:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            return entry

        try:
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                for path in sorted(Path(OUTPUT_PATH).iterdir()):
                    archive.add(path, path.name, filter=bounded)
        except (OSError, RecursionError):  # of folders in folders
            return b""
        return buffer.getvalue()

    def _launch(self, number: int, data: bytes) -> None:
        command, variables = json.loads(data)
        try:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env={**os.environ, **variables, "NARROWS_MARKS": MARKS_PATH},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._say(PRINTED, number, f"{command[0]}: {error.strerror}\n".encode())
            self._say(PRINTED, number)
            status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED
            self._say(ENDED, number, str(status).encode())
            return
        self._processes[process.pid] = number, process
        assert process.stdout is not None
        output = process.stdout.fileno()
        self._hear(output, partial(self._pass_on, number, process.stdout))

    def _pass_on(self, number: int, pipe: IO[bytes]) -> None:
        data = os.read(pipe.fileno(), _CHUNK)
        self._say(PRINTED, number, data)
        if not data:
            self._sources.unregister(pipe.fileno())
            pipe.close()

    def _open(self, listening: socket.socket) -> None:
        with suppress(OSError):
            connected, _ = listening.accept()
            if len(self._connections) < _MOST_CONNECTIONS:
                self._admit(connected)

    def _admit(self, connected: socket.socket) -> None:
        number = next(self._numbers)
        self._connections[number] = connected
        self._hear(connected, partial(self._take_marks, number))
        self._say(OPENED, number)

    def _take_marks(self, number: int) -> None:
        data = b""
        with suppress(OSError):
            data = self._connections[number].recv(_CHUNK)
        self._say(MARKS if data else CLOSED, number, data)
        if not data:
            self._close(number)

    def _answer_marks(self, number: int, data: bytes) -> None:
        """Without waiting: who reads no answer gets none."""
        if not data:
            self._close(number)
            return
        with suppress(OSError):
            self._connections[number].send(data, socket.MSG_DONTWAIT)

    def _close(self, number: int) -> None:
        connected = self._connections.pop(number)
        self._sources.unregister(connected)
        connected.close()

    def _say(self, kind: int, number: int, data: bytes = b"") -> None:
        if self._controller is not None:
            with suppress(OSError):  # it has ended, which is noticed when it is read
                send_frame(self._controller, kind, number, data)

    def _pause(self) -> None:
        """Until every command's process has stopped."""
        self._signal(signal.SIGSTOP)
        for pid in self._processes:
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _signal(self, number: int) -> None:
        """To every process of the container but this one."""
        with suppress(ProcessLookupError):
            os.kill(-1, number)


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
    if given[:1] == [COMMANDS]:
        sys.exit(CommandKeeper(given[1], int(given[2])).serve(listener()))
    if given[:1] == [LISTEN]:
        sys.exit(Keeper(given[1:]).serve(listener()))
    sys.exit(Keeper(given).serve())
