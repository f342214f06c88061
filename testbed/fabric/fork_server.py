"""The process that nodes are forks of: ``python -m testbed.fabric.fork_server``, started by
``testbed.fabric.forker``.

A node has namespaces of its own for network, mounts, processes, inter-process communication and the
host's name; what is first in them is process 1 there, and when it ends the kernel kills the others.
It has no privilege before it runs any code of the experiment.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from testbed.cgroups import ControlGroup
from testbed.errors import MachineError
from testbed.fabric.base import START_S
from testbed.fabric.file_view import NODE_USER, Shown, account_for, check, lay
from testbed.fabric.forker import MESSAGE_BYTES
from testbed.fabric.node_launcher import drop_privileges, execute
from testbed.links.network.namespaces import enter
from testbed.process import (
    NEW_IPC,
    NEW_MOUNTS,
    NEW_NAMES,
    NEW_NETWORK,
    NEW_PROCESSES,
    call,
    die_with,
    prctl,
    raise_open_files,
    restore_open_files,
    unshare,
)
from testbed.topology import Limits, bound_by_rlimits

_SET_NAME, _NAME_BYTES = 15, 15
_SET_DEATH_SIGNAL, _ADOPT = 1, 36

NODE = "testbed.runner.node_process"
"""The module that is run as a node: named, not imported, since it stands above fabrics."""
SHARED = (NODE, "testbed.records.exporter")
"""Modules that every node uses."""
TRAINING = (
    "testbed.training.worker",
    "testbed.training.server",
    "testbed.training.compute",
    "testbed.training.tasks",
    "testbed.training.models.architectures",
    "testbed.compress.kernels.cpu",
)
"""Modules that nodes use that train, PyTorch among what they import."""
_IMPORTS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "testbed": SHARED,
    "torch": (*SHARED, *TRAINING),
}

BEGIN_S = START_S / 3
"""How long a process may take from its fork to its own program."""

Request = dict[str, Any]
_OF_A_ROOM = ("account", "groups", "bounds", "nodes")
"""Parts of a room's request that hold for its commands."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Import, then fork a process for every request until the other end closes."""
    parser = argparse.ArgumentParser(prog="testbed.fabric.fork_server")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--imports", choices=_IMPORTS, required=True)
    options = parser.parse_args(arguments)
    die_with(options.parent)
    raise_open_files()  # it has one for every process
    gc.disable()  # nothing of what is imported goes away again
    with suppress(ImportError):  # the node will say it, in its own log
        _prepare(options.imports)
    gc.freeze()
    gc.enable()
    Forking(socket.socket(fileno=options.channel)).serve()
    os._exit(0)  # to take all modules down again would hold up the end of the run


def _prepare(imports: str) -> None:
    """Import what nodes will use, and load the kernels that are compiled: nodes could keep none on
    the disk.

    No thread may be started: a fork has none but the one that called it.
    """
    for module in _IMPORTS[imports]:
        importlib.import_module(module)
    if imports == "torch":
        from testbed.compress.kernels import compilation

        compilation.all()


class Forking:
    """Forks and reports ends until ``channel`` is closed at its other end."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._waiting = select.poll()
        self._waiting.register(channel, select.POLLIN)
        self._children: dict[int, int] = {}
        self._rooms: dict[int, Request] = {}
        self._own = os.pidfd_open(os.getpid())
        prctl(_ADOPT, 1)

    def serve(self) -> None:
        """Until the other end has gone."""
        while True:
            for descriptor, _ in self._waiting.poll():
                if descriptor != self._channel.fileno():
                    self._report(descriptor)
                    continue
                try:
                    request, files, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES, 2)
                except ConnectionError:  # killed, with messages of ours unread
                    return
                if not request:
                    return
                with os.fdopen(files[0], "rb") as text:
                    wanted = json.load(text)
                self._say(self._answer(wanted, files[1]))
                os.close(files[1])

    def _report(self, descriptor: int) -> None:
        self._waiting.unregister(descriptor)
        os.close(descriptor)
        pid, status = os.waitpid(self._children.pop(descriptor), 0)
        self._say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})

    def _say(self, message: dict[str, Any]) -> None:
        with suppress(ConnectionError):
            self._channel.send(json.dumps(message).encode())

    def _answer(self, request: Request, output: int) -> dict[str, Any]:
        """The number of the new process, or why there is none."""
        try:
            if "room" in request:
                request.update(self._rooms[request["room"]])
            else:
                request["view"] = [Shown(*each) for each in request["view"]]
                request["account"] = account_for(request["view"])
            reading, writing = os.pipe()
            try:
                try:
                    pid = self._fork(request, output, writing)
                finally:
                    os.close(writing)
                failure = _failure(reading, pid)
            finally:
                os.close(reading)
        except MachineError as error:
            return _why(error)
        except OSError as error:
            return {"error": f"a node's process could not be started: {error.strerror}"}
        if failure:
            os.waitpid(pid, 0)
            answer: dict[str, Any] = json.loads(failure)
            return answer
        watched = os.pidfd_open(pid)
        self._children[watched] = pid
        self._rooms[pid] = {key: request.get(key) for key in _OF_A_ROOM}
        self._waiting.register(watched, select.POLLIN)
        return {"pid": pid}

    def _fork(self, request: Request, output: int, ready: int) -> int:
        """A child in a namespace of processes of its own, or in that of its room. Raises OSError.

        There a process in between begins it, and ends: who has once chosen a namespace for its
        children cannot go back.
        """
        room = request.get("room")
        if room is not None:  # in there, processes out here have no numbers
            opened = {pid: descriptor for descriptor, pid in self._children.items()}
            if room not in opened:
                raise OSError(errno.ESRCH, "its node has ended")
            request["room"] = opened[room]
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            os.close(reading)
            unneeded = {self._channel.fileno(), *self._children} - {request.get("room")}
            _begin(_Start(request, output, ready, self._own, unneeded), writing)
        os.close(writing)
        with os.fdopen(reading) as said:
            text = said.read()
        os.waitpid(between, 0)
        if not text.isdigit():
            raise OSError(0, text or "it was killed at once")
        return int(text)


def _failure(said: int, pid: int) -> bytes:
    """Return what ``pid`` writes before it begins; nothing: it has begun. Raises TimeoutError where
    it does not, and is killed: others of its node may have stopped it."""
    text, waiting, give_up = b"", select.poll(), time.monotonic() + BEGIN_S
    waiting.register(said, select.POLLIN)
    while waiting.poll(max(0.0, 1e3 * (give_up - time.monotonic()))):
        if not (more := os.read(said, MESSAGE_BYTES)):
            return text
        text += more
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(errno.ETIMEDOUT, f"it did not begin within {BEGIN_S:g} s, and was killed")


class _Start(NamedTuple):
    """A process that is to be started, with the descriptors that it is given."""

    request: Request
    output: int
    ready: int
    """Closed when it has begun, or told what failed."""
    parent: int
    unneeded: set[int]
    """Descriptors to close."""


def _begin(start: _Start, answer: int) -> NoReturn:
    """In between: fork the process that was asked for, and write its number to ``answer``."""
    try:
        own = os.pidfd_open(os.getpid())
        if "room" in start.request:
            call("setns", start.request["room"], NEW_PROCESSES)
        else:
            unshare(NEW_PROCESSES)
        if (pid := os.fork()) == 0:
            os.close(answer)
            _live(start, own)
        os.write(answer, str(pid).encode())
    except OSError as error:
        os.write(answer, (error.strerror or str(error)).encode())
    finally:
        os._exit(0)


def _live(start: _Start, between: int) -> NoReturn:
    """The fork, until it ends. ``between``: a descriptor of the process that has begun it."""
    status, begun = 1, False

    def begin() -> None:
        nonlocal begun
        die_with_descriptor(start.parent)  # a change of user undoes it
        os.close(start.parent)
        os.close(start.ready)
        begun = True

    try:
        _has_ended(between)  # from then on the forking process is the parent
        for descriptor in (between, *start.unneeded):
            os.close(descriptor)
        os.setsid()
        os.dup2(start.output, 1)
        os.dup2(start.output, 2)
        os.close(start.output)
        die_with_descriptor(start.parent)
        restore_open_files()
        _BECOMES[start.request["kind"]](start.request, begin)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:
        if begun:
            traceback.print_exc()
        else:
            os.write(start.ready, json.dumps(_why(error)).encode())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _why(error: BaseException) -> dict[str, Any]:
    if isinstance(error, MachineError):
        return {"error": error.message, "fix": error.fix}
    return {"error": f"a node could not be isolated: {error}"}


def die_with_descriptor(parent: int) -> None:
    """Be killed when the parent, known by a descriptor only, dies."""
    prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if _has_ended(parent, 0):
        os._exit(1)


def _has_ended(process: int, most_ms: int | None = None) -> bool:
    """Wait for the end of a process, known by a descriptor, for ``most_ms`` at most. Return whether
    it has come.

    There may be thousands of descriptors: select(2) takes none from 1024 on.
    """
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    return bool(waiting.poll(most_ms))


def _isolate(request: Request) -> None:
    """Enter a node's network, make its other namespaces, give up all privileges."""
    ControlGroup(tuple(map(Path, request["groups"]))).enter()
    enter(request["netns"])
    unshare(NEW_MOUNTS | NEW_IPC | NEW_NAMES)
    name = request["name"].encode()
    call("sethostname", name, ctypes.c_size_t(len(name)))
    whose, shown = request["account"], request["view"]
    files, sizes = {"/etc/hosts": request["hosts"]}, request["sizes"]
    lay(shown, whose, processes=True, files=files, sizes=sizes)
    os.chdir("/")  # the folder of whoever called may be covered, or of another namespace
    _bound(request)
    drop_privileges(whose)
    if whose is not None:
        check(shown)
    _name_process(request["name"])


def _bound(request: Request) -> None:
    """Have limits of its own, where no control group has them."""
    if request["bounds"] is not None:
        whose = request["account"]
        # nobody else on this host is the nodes' user: Linux counts no other processes with theirs
        alone = whose is None or whose.user == NODE_USER
        bound_by_rlimits(Limits(**request["bounds"]), request["nodes"], alone=alone)


def _be_node(request: Request, begin: Callable[[], None]) -> None:
    """A node of ours: its process is the first of its namespace."""
    _isolate(request)
    os.environ.update(request["variables"])
    begin()
    importlib.import_module(NODE).main(request["arguments"])


def _be_room(request: Request, begin: Callable[[], None]) -> None:
    """The first process of a node for commands: it waits for what has lost its parent."""
    _isolate(request)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    begin()
    while signal.sigwait({signal.SIGCHLD}):
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _be_command(request: Request, begin: Callable[[], None]) -> None:
    """A command in a room that stands."""
    ControlGroup(tuple(map(Path, request["groups"]))).enter()
    call("setns", request["room"], NEW_NETWORK | NEW_MOUNTS | NEW_IPC | NEW_NAMES)
    os.close(request["room"])
    _bound(request)
    drop_privileges(request["account"])
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["variables"])
    begin()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    execute(request["command"])


_BECOMES = {"node": _be_node, "room": _be_room, "command": _be_command}


def _name_process(name: str) -> None:
    """Set the name that ``ps -o comm`` shows: up to 15 characters."""
    text = ctypes.create_string_buffer(name.encode()[:_NAME_BYTES])
    prctl(_SET_NAME, ctypes.addressof(text))


if __name__ == "__main__":
    main()
