"""One run at a time where the machine is not big enough for two: they would disturb each other's timing."""

from __future__ import annotations

import fcntl
import os
import pwd
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from testbed.errors import InputError, MachineError

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
    """The file that is locked. Raises MachineError where somebody has put something else in its place."""
    path = _path()
    # Not to be created here: of a file that is another user's, systems refuse that in shared folders.
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise MachineError(
            f"the file by which all users' runs wait for each other cannot be opened: {path}: {error.strerror}",
            fix="Have whoever it belongs to, or root, remove it",
        ) from error


def _locked(descriptor: int) -> bool:
    """Lock the open file if nobody else has it, without waiting; False if somebody has. Closing it unlocks it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    """The process that has locked the open file, in words, as far as this user may know it: any user can hold it."""
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
