"""Nodes of ``netns`` as forks of one process that has imported what they need.

``Forker`` starts ``python -m testbed.fabric.forker``, which imports PyTorch once; each node is then a fork of it, in
its own network namespace and without any privilege, a hundredth of a second after it was asked for. The two speak over
a socket that keeps messages apart; a node's output file travels with the request.
A node dies with the forking process, and that with the thread that started it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, NoReturn

from testbed.errors import ExperimentError
from testbed.fabric.base import START_S
from testbed.fabric.enter import drop_privileges
from testbed.links.namespaces import enter
from testbed.process import PACKAGE, die_with, module_command, node_environment, prctl

_MESSAGE_BYTES = 65_536
_SET_NAME, _NAME_BYTES = 15, 15
_END_S = 5.0

SHARED = ("testbed.session.node", "testbed.session.flows", "testbed.record.exporter")
"""Modules that every node uses."""
TRAINING = (
    "testbed.train.worker",
    "testbed.train.server",
    "testbed.train.workshop",
    "testbed.train.tasks.builtin",
    "testbed.train.models.dense",
    "testbed.train.models.layers",
    "testbed.compress.kernels.cpu",
)
"""Modules that nodes use that train, PyTorch among what they import."""


class Forked:
    """A node's process, with the part of ``subprocess.Popen`` that fabrics use."""

    def __init__(self, forker: Forker, pid: int) -> None:
        self.pid = pid
        self._forker = forker

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._forker.status(self.pid, 0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Exit status. Raises subprocess.TimeoutExpired."""
        status = self._forker.status(self.pid, timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"node {self.pid}", timeout or 0.0)
        return status


class Forker:
    """Starts the forking process, ``variables`` its environment. ``trains``: nodes do, and it imports PyTorch for them.

    To be made in a thread that lives as long as the nodes shall. The other methods may be called from any thread.
    """

    def __init__(self, variables: Mapping[str, str], *, trains: bool) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        options = ["--parent", str(os.getpid()), "--channel", str(theirs.fileno())]
        options += ["--trains"] if trains else []
        with theirs:
            self._process = subprocess.Popen(
                module_command("testbed.fabric.forker", *options),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**variables, "PYTHONUNBUFFERED": "1"},
                pass_fds=(theirs.fileno(),),
            )
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}

    @property
    def pid(self) -> int:
        """Of the forking process itself."""
        return self._process.pid

    def start(
        self, netns: str, arguments: Sequence[str], variables: Mapping[str, str], output: BinaryIO
    ) -> Forked:
        """Run ``testbed.session.node`` with ``arguments`` in a namespace. Raises ExperimentError.

        ``variables``: what the node's environment has beside the forking process's.
        """
        fields = {"netns": netns, "arguments": list(arguments), "variables": dict(variables)}
        request = json.dumps(fields).encode()
        with self._lock:
            try:
                socket.send_fds(self._socket, [request], [output.fileno()])
                give_up = time.monotonic() + START_S
                while (answer := self._receive(give_up - time.monotonic())) is not None:
                    if "pid" in answer:
                        return Forked(self, answer["pid"])
            except OSError as error:
                raise self._gone() from error
        raise self._gone()

    def status(self, pid: int, timeout_s: float | None) -> int | None:
        """How a node has ended, waited for up to ``timeout_s`` (None: for ever); None while it runs."""
        give_up = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                while pid not in self._ended and self._receive(0.0) is not None:
                    pass
                if pid in self._ended:
                    return self._ended[pid]
                if self._process.poll() is not None:
                    return -signal.SIGKILL  # with the process that it is a fork of
            left = give_up - time.monotonic()
            if left <= 0:
                return None
            select.select([self._socket], [], [], min(left, 0.2))

    def close(self, *, at_once: bool = False) -> None:
        """End the forking process, and with it every node that is left. Safe to call twice.

        ``at_once``: without waiting until it has imported everything.
        """
        self._socket.close()
        if at_once:
            self._process.kill()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        """One message, noted if it is of a node's end; None when none comes or there is nobody to send any."""
        if (
            self._socket.fileno() < 0
            or not select.select([self._socket], [], [], max(0.0, timeout_s))[0]
        ):
            return None
        try:
            text = self._socket.recv(_MESSAGE_BYTES)
        except ConnectionError:
            return None
        if not text:
            return None
        message: dict[str, Any] = json.loads(text)
        if "ended" in message:
            self._ended[message["ended"]] = message["status"]
        return message

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
    """Begin to import PyTorch for nodes that train, where that is ``wanted``, before it is known what they will do.

    To be entered in a thread that lives as long as the nodes shall. What ``take`` did not fetch ends with the context.
    """
    if wanted:
        _AHEAD.append(Forker(node_environment(), trains=True))
    try:
        yield
    finally:
        if (unused := take()) is not None:
            unused.close(at_once=True)


def take() -> Forker | None:
    """The forking process that was begun ahead, once; it imports what nodes need that train."""
    return _AHEAD.pop() if _AHEAD else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Import, then fork a node for every request until the other end closes."""
    parser = argparse.ArgumentParser(prog="testbed.fabric.forker")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--trains", action="store_true")
    options = parser.parse_args(arguments)
    die_with(options.parent)
    gc.disable()  # nothing of what is imported goes away again
    with suppress(ImportError):  # the node will say it, in its own log
        _prepare(options.trains)
    gc.freeze()
    gc.enable()
    serve(socket.socket(fileno=options.channel))
    os._exit(0)  # to take all modules down again would hold up the end of the run


def _prepare(trains: bool) -> None:
    """Import what nodes will use, and load the kernels that are compiled, where that leaves no root's file in another's folder.

    No thread may be started: a fork has none but the one that called it.
    """
    for module in (*SHARED, *(TRAINING if trains else ())):
        importlib.import_module(module)
    if trains and PACKAGE.stat().st_uid == os.geteuid():
        from testbed.compress.kernels import cache, warm

        if cache.is_filled():
            warm.all()


def serve(channel: socket.socket) -> None:
    """Fork and report ends until ``channel`` is closed at its other end."""
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    children: dict[int, int] = {}
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor != channel.fileno():
                waiting.unregister(descriptor)
                os.close(descriptor)
                pid, status = os.waitpid(children.pop(descriptor), 0)
                ended = {"ended": pid, "status": os.waitstatus_to_exitcode(status)}
                with suppress(ConnectionError):
                    channel.send(json.dumps(ended).encode())
                continue
            try:
                request, outputs, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 1)
            except ConnectionError:  # killed, with messages of ours unread
                return
            if not request:
                return
            forking, pid = os.getpid(), os.fork()
            if pid == 0:
                _become(json.loads(request), outputs[0], forking, [channel.fileno(), *children])
            os.close(outputs[0])
            watched = os.pidfd_open(pid)
            children[watched] = pid
            waiting.register(watched, select.POLLIN)
            with suppress(ConnectionError):
                channel.send(json.dumps({"pid": pid}).encode())


def _become(request: dict[str, Any], output: int, forking: int, unneeded: list[int]) -> NoReturn:
    """In the fork: be the node until it ends."""
    status = 1
    try:
        for descriptor in unneeded:
            os.close(descriptor)
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        arguments = request["arguments"]
        _name_process(arguments[arguments.index("--name") + 1])
        die_with(forking)
        enter(request["netns"])
        drop_privileges()
        os.environ.update(request["variables"])
        die_with(forking)  # a change of user has undone it
        from testbed.session import node

        node.main(arguments)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _name_process(name: str) -> None:
    """What ``ps -o comm`` shows: up to 15 characters."""
    text = ctypes.create_string_buffer(name.encode()[:_NAME_BYTES])
    prctl(_SET_NAME, ctypes.addressof(text))


if __name__ == "__main__":
    main()
