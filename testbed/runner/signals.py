"""Ends of a run in order (Ctrl-C, SIGTERM, a closed terminal), one run at a time on a small
machine, garbage collection kept rare, and which of several failures is the cause.
"""

from __future__ import annotations

import fcntl
import gc
import os
import pwd
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from testbed.errors import (
    ExperimentError,
    InputError,
    Interrupted,
    MachineError,
    NarrowsError,
    NodeLost,
)
from testbed.process import ignore, rarely_collected

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_AGAIN_S = 0.01

_blocks: list[bool] = []
"""The blocks of ``interruptible`` that the process is in: whether each keeps records."""


@contextmanager
def interruptible(raised: list[Interrupted] | None = None) -> Iterator[None]:
    """The first signal raises Interrupted; later ones are ignored while cleaning up.

    ``raised``: this is the whole command, which has no records itself. The error goes into it, for
    others may make another of it. What comes after the first signal, or after the block, is then
    ignored for good, and blocks inside add only their records.
    """
    _blocks.append(raised is None)
    try:
        with nullcontext() if len(_blocks) > 1 else _raising(raised):
            yield
    finally:
        _blocks.pop()


@contextmanager
def _raising(raised: list[Interrupted] | None) -> Iterator[None]:
    def interrupt(number: int, _frame: FrameType | None) -> None:
        _ignore()
        error = Interrupted(signal.Signals(number).name, records=_blocks[-1])
        if raised is not None:
            raised.append(error)
        raise error

    def swallowed(what: sys.UnraisableHookArgs) -> None:
        """Where it was raised in a destructor, which only says so, come again a little later."""
        if not isinstance(what.exc_value, Interrupted):
            hook(what)
            return
        for each in _SIGNALS:
            signal.signal(each, interrupt)
        again = os.getpid(), signal.Signals[what.exc_value.signal_name]
        threading.Timer(_AGAIN_S, os.kill, again).start()

    heeded = set(_SIGNALS)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # as nohup has it
        heeded.remove(signal.SIGHUP)
    before = {each: signal.signal(each, interrupt) for each in heeded}
    hook, sys.unraisablehook = sys.unraisablehook, swallowed
    try:
        yield
    finally:
        if raised is not None:
            _ignore()
        else:
            sys.unraisablehook = hook
            for each, handler in before.items():
                signal.signal(each, handler)


def _ignore() -> None:
    """Ignore signals, as programs that are started from now on do.

    First there is a function for them: of a signal that came a moment before, Python would say that
    nobody waits for it any more.
    """
    for each in _SIGNALS:
        signal.signal(each, lambda _number, _frame: None)
        ignore(each)
        signal.signal(each, signal.SIG_IGN)


@contextmanager
def blocked() -> Iterator[None]:
    """Signals wait, for this thread and the processes that it starts, which let them come later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def shielded() -> Iterator[None]:
    """Signals wait until what is in here is done, and are then raised unless it failed itself.

    For cleaning up and for writing down: half of either would be worse than a second's delay.
    """
    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if came:
        if _blocks:
            _ignore()
        raise Interrupted(signal.Signals(came[0]).name)


CORES_PER_RUN = 8
"""With fewer cores than this, runs wait for each other."""


@contextmanager
def machine(say: Callable[[str], None]) -> Iterator[None]:
    """Hold the machine. ``say(text)`` is called when another run has it and this one waits."""
    if (os.cpu_count() or 1) >= CORES_PER_RUN:
        yield
        return
    descriptor = _opened()
    try:
        if not _locked(descriptor):
            say(
                f"another run has this machine ({os.cpu_count()} cores; runs share one from "
                f"{CORES_PER_RUN} on): waiting for {_holder(descriptor)} to end"
            )
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_free() -> bool:
    """Return True when no other run holds the machine now."""
    descriptor = _opened()
    try:
        return _locked(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Hold a comparison's directory; the end of the process, however it comes, gives it back.

    Raises InputError when another process has it.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if not _locked(descriptor):
            raise InputError(
                f"the comparison in {directory} is being carried out by another process",
                where="--resume",
                hint="Wait for its end, or interrupt it first",
            )
        yield
    finally:
        os.close(descriptor)


def _opened() -> int:
    """The file that is locked. Raises MachineError where something else is in its place."""
    path = _path()
    # Not to be created here: of a file that is another user's, systems refuse that in shared
    # folders.
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise MachineError(
            f"the file by which all users' runs wait for each other cannot be opened: {path}: "
            f"{error.strerror}",
            fix="Have whoever it belongs to, or root, remove it",
        ) from error


def _locked(descriptor: int) -> bool:
    """Lock the open file without waiting; False if somebody has it. Closing unlocks it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    """The process that has locked the open file, in words, as far as this user may know."""
    inode = os.fstat(descriptor).st_ino
    with suppress(OSError, KeyError, ValueError):
        for row in Path("/proc/locks").read_text().splitlines():
            words = row.split()
            if words[1] == "FLOCK" and int(words[5].rpartition(":")[2]) == inode:
                process = Path("/proc", words[4])
                user = pwd.getpwuid(process.stat().st_uid).pw_name
                return f"process {process.name} of user {user}"
    return "it"


def _path() -> Path:
    """Shared by all users of the machine, so that root's runs and others' wait for each other."""
    shared = Path("/run/lock")
    folder = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    path = folder / "narrows.lock"
    with suppress(FileExistsError):
        path.touch(mode=0o666, exist_ok=False)
        path.chmod(0o666)
    return path


@contextmanager
def seldom_collected() -> Iterator[None]:
    """With few collections of garbage: on real links a pause of some milliseconds would be measured
    as network, and in virtual time they would look through ten thousand nodes again and again."""
    _set_aside(len(sys.modules))
    gc.collect()
    with rarely_collected():
        yield


@cache
def _set_aside(modules: int) -> None:
    """Have collections pass over what these modules made: looking through takes 0.3 s."""
    del modules
    gc.freeze()


_BY_EXIT_CODE: dict[int, type[NarrowsError]] = {
    InputError.exit_code: InputError,
    MachineError.exit_code: MachineError,
}
"""Errors by exit code: a node may report a fault of the input, or of its machine."""


class Failures:
    """Failures in the order they came. A dead process outranks what nodes report of their own work,
    and that outranks what they report of each other."""

    def __init__(self, first: NarrowsError, reporter: str | None = None) -> None:
        self._ranked: list[tuple[int, NarrowsError]] = []
        self._reporters: set[str | None] = set()
        self.add(first, reporter=reporter)

    def add(
        self, error: NarrowsError, *, certain: bool = False, reporter: str | None = None
    ) -> None:
        """Take one more; ``certain``: the fabric saw the end; ``reporter``: who says it."""
        hearsay = isinstance(error, NodeLost) and error.hearsay
        self._ranked.append((0 if certain else 2 if hearsay else 1, error))
        self._reporters.add(reporter)

    def cause(self) -> NarrowsError:
        """The first of the highest rank; a node that tells of another's loss was not lost before
        it.

        Of a lost node, others may know in what phase they missed it.
        """
        first = [item for item in self._ranked if not self._has_reported(item[1])] or self._ranked
        cause = min(first, key=lambda item: item[0])[1]
        if not isinstance(cause, NodeLost) or cause.phase is not None:
            return cause
        lost = [error for _, error in self._ranked if isinstance(error, NodeLost)]
        other = next((e for e in lost if e.node == cause.node and e.phase is not None), None)
        return cause if other is None else cause.during(other.step or 0, str(other.phase))

    def _has_reported(self, error: NarrowsError) -> bool:
        """Return True when the node that is said to be lost has reported something itself."""
        return isinstance(error, NodeLost) and error.hearsay and error.node in self._reporters

    @staticmethod
    def reported(node: str, message: dict[str, Any]) -> NarrowsError:
        """The error that a node sent over the control network."""
        text = str(message["message"])
        if message.get("error") != "NodeLost":
            kind = _BY_EXIT_CODE.get(message.get("exit_code", 1), ExperimentError)
            return kind(f"node {node!r}: {text}")
        return NodeLost(
            str(message["node"]),
            message.get("step"),
            f"{node} says: {text}",
            phase=message.get("phase"),
            hearsay=True,
        )


def located(lost: NodeLost, steps: Mapping[str, int]) -> NodeLost:
    """The same loss with the step that the node was at; ``steps``: the last finished ones."""
    if lost.step is not None:
        return lost
    step = steps.get(lost.node, 0) + 1
    return NodeLost(lost.node, step, lost.reason, phase=lost.phase, hearsay=lost.hearsay)
