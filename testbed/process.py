"""Processes: starting our modules, being on time, and what a process may change of itself."""

from __future__ import annotations

import ctypes
import errno
import gc
import io
import os
import re
import resource
import select
import signal
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from threading import Thread
from typing import Any

from testbed import ASIDE
from testbed.errors import InputError, brief

PRIORITY = 20
"""Above everything that is not real-time, below the kernel's own threads at 50 and more."""

NAP_NS, AWAKE_NS, _AWAKE_PARTS = 20_000_000, 2_000_000, 10
"""The longest nap; the most that passes awake before a deadline, and of the time since the last
deadline one part in so many."""
_NAPS, _LONGER = 64, 2
"""So many naps say how long one lasts: all but fewer than ``_LONGER`` of them were shorter."""

NEW_MOUNTS, NEW_NAMES, NEW_IPC, NEW_PROCESSES = 0x00020000, 0x04000000, 0x08000000, 0x20000000
"""Kinds of namespaces: mounts, the host's name, IPC objects, process numbers."""
NEW_USERS, NEW_NETWORK = 0x10000000, 0x40000000
"""Two more; the first process of the former has all capabilities in it."""
BIND, RECURSIVE = 0x1000, 0x4000
_PRIVATE, _DETACH = 0x40000, 2
_SET_DEATH_SIGNAL = 1
_RARELY = 20_000, 10, 10
"""Objects that are there more than before, when the youngest are collected, which takes about 1 ms;
how often that is before older ones are, too; and how often those before all are."""
_SWITCH_S = 5e-4

_OPEN_FILES = "NARROWS_OPEN_FILES"
"""The soft limit of open files before it was raised."""

SET_BY_US: set[str] = set()
"""Variables of this process's environment that are no choice of its user's."""

PACKAGE = Path(str(files("testbed"))).resolve()
"""The folder of the package itself."""

_FOR_NODES = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|TZ|TMPDIR|TERM|COLORTERM|NO_COLOR|FORCE_COLOR|COLUMNS|LINES"
    r"|VIRTUAL_ENV|CONDA_PREFIX|CONDA_DEFAULT_ENV"
    r"|PYTHON\w*|(LC|LD|XDG|NARROWS|COVERAGE|OMP|GOMP|KMP|MKL|OPENBLAS|NUMBA|TORCH[A-Z]*|PYTORCH|TRITON"
    r"|CUDA|CUDNN|CUBLAS|NVIDIA|NCCL|GLOO|TP)_\w+"
)
"""Names of variables for nodes and jobs: programs, libraries, languages, terminals, devices."""
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)(API)?KEY(_|$)|APIKEY")
"""In a name: it is no setting of a library, whatever the name begins with."""

_LONGEST_S = 1e6
"""Most seconds that a variable may give: any wait of the standard library can be that long."""

_libc = ctypes.CDLL(None, use_errno=True)


def within(seconds: float, pause_s: float, done: Callable[[], bool]) -> bool:
    """Look again and again for so many seconds. Return whether it was done at last."""
    give_up = time.monotonic() + seconds
    while not done():
        if time.monotonic() > give_up:
            return False
        time.sleep(pause_s)
    return True


def ignore(number: signal.Signals) -> None:
    """Have the kernel ignore a signal, whatever Python would do about it."""
    _libc.signal(number, ctypes.c_void_p(signal.SIG_IGN))


def call(name: str, *arguments: object) -> None:
    """Call a function of the C library that returns 0. Raises OSError with its name."""
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module, taking nothing from the working directory."""
    return [sys.executable, "-P", "-m", module, *arguments]


def launch_command(command: Sequence[str], at_ns: int = 0) -> list[str]:
    """The command line of a child that becomes ``command`` at ``at_ns`` of the host's monotonic
    clock (0: at once), and dies with the thread of this process that starts it.

    An interpreter takes a while to start, and longer on a busy machine: it is started early.
    """
    options = ["--parent", str(os.getpid()), "--at-ns", str(at_ns)]
    return module_command("testbed.process", *options, "--", *command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Wait and become the command (``launch_command``)."""
    import argparse

    parser = argparse.ArgumentParser(prog="testbed.process")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--at-ns", type=int, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with(options.parent)
    while (left := options.at_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)
    os.execvp(options.command[0], options.command)


def guard() -> None:
    """Look for programs where nobody else can put one, and make no file that everybody may write.

    For the command's own processes, and before anything else is done.
    """
    known = os.environ.get("PATH", os.defpath)
    kept = os.pathsep.join(filter(is_trusted, known.split(os.pathsep))) or os.defpath
    if kept != known:
        os.environ[f"{ASIDE}PATH"] = known
    os.environ["PATH"] = kept
    os.umask(os.umask(0o077) | stat.S_IWOTH)


def is_trusted(folder: str) -> bool:
    """Return whether programs of a folder are run: one that ``PATH`` names in full and, for root,
    that is root's, or of whose Python this is, with all folders and links on the way, and that not
    everybody may write to."""
    path = Path(folder)
    if not path.is_absolute() or os.geteuid() != 0:
        return path.is_absolute()
    with suppress(FileNotFoundError):  # no Linux, and so no user namespace
        if not is_root_outside():
            return True
    try:
        own = Path(sys.executable).parent.stat().st_uid
        *above, last = _way_to(path)
    except OSError:
        return False
    # In a folder such as /tmp nobody else renames what is root's.
    safe = (not each.st_mode & stat.S_IWOTH or each.st_mode & stat.S_ISVTX for each in above)
    owned = (each.st_uid in (0, own) for each in (*above, last))
    return all(owned) and all(safe) and not last.st_mode & stat.S_IWOTH


_MOST_LINKS = 40


def _way_to(path: Path) -> list[os.stat_result]:
    """The folders from the root to ``path``, and those that links on the way lead through; of each
    link its owner's, as of a folder. Raises OSError."""
    states, here, links = [Path("/").stat()], Path("/"), 0
    left = list(path.parts[1:])
    while left:
        name = left.pop(0)
        here = here.parent if name == ".." else here / name
        state = here.lstat()
        if not stat.S_ISLNK(state.st_mode):
            states.append(state)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = here.readlink()
        states.append(os.stat_result((stat.S_IFDIR | 0o755, *state[1:])))
        here = Path("/") if target.is_absolute() else here.parent
        left = [part for part in target.parts if part != "/"] + left
    return states


def users_environment() -> dict[str, str]:
    """This process's variables as its user has set them."""
    own = {name: text for name, text in os.environ.items() if name not in SET_BY_US}
    aside = {name: own.pop(name) for name in list(own) if name.startswith(ASIDE)}
    return own | {name.removeprefix(ASIDE): text for name, text in aside.items()}


def environment(**extra: str) -> dict[str, str]:
    """This process's environment, in which the package is found from any directory."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # an empty entry, or one that is relative, would be the working directory
    path = os.pathsep.join([str(PACKAGE.parent), *filter(os.path.isabs, known)])
    return {**os.environ, "PYTHONPATH": path, **extra}


def seconds_given(name: str, default_s: float) -> float:
    """The seconds that a variable of this process gives. Raises InputError where they are none."""
    text = os.environ.get(name) or str(default_s)
    with suppress(ValueError):
        if 0 < (seconds := float(text)) <= _LONGEST_S:
            return seconds
    raise InputError(
        f"{brief(text)} is no number of seconds",
        where=name,
        hint=f"Write for example {default_s:g}",
    )


def node_environment(**extra: str) -> dict[str, str]:
    """The same for nodes of ours: only what they may need, and no secrets."""
    return {**for_nodes(environment()), **extra}


def for_nodes(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of ``variables`` that nodes and jobs get without being asked for: by their names."""
    return {
        name: text
        for name, text in variables.items()
        if _FOR_NODES.fullmatch(name) and not _SECRET.search(name.upper())
    }


def set_default(name: str, value: str) -> None:
    """Set a variable that the user has not set, for this process and its children."""
    if name not in os.environ:
        os.environ[name] = value
        SET_BY_US.add(name)


def raise_open_files() -> None:
    """Hold as many files open as may be; ``restore_open_files`` takes that back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            set_default(_OPEN_FILES, str(soft))
    if _OPEN_FILES in os.environ:
        SET_BY_US.add(_OPEN_FILES)


def restore_open_files() -> None:
    """Restore the soft limit of open files: select(2) knows no file from 1024 on."""
    before = os.environ.pop(_OPEN_FILES, "")
    if before.isdecimal():
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(before), hard))


def die_with(parent: int) -> None:
    """Be killed when the parent dies; at once if it has already. After any change of user."""
    prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def effective_capabilities() -> int:
    """The capabilities that this process has now, a bit each."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def is_mapped(user: int, rows: str | None = None) -> bool:
    """Return whether a process here can become ``user``: a user namespace may know one user only.

    ``rows`` are as in ``/proc/self/uid_map``, which is read when none are given.
    """
    text = Path("/proc/self/uid_map").read_text() if rows is None else rows
    ranges = (tuple(map(int, row.split())) for row in text.splitlines())
    return any(first <= user < first + count for first, _, count in ranges)


def is_root_outside(rows: str | None = None) -> bool:
    """Return whether user 0 of this user namespace is user 0 of the one around it as well."""
    text = Path("/proc/self/uid_map").read_text() if rows is None else rows
    ranges = (tuple(map(int, row.split())) for row in text.splitlines())
    return any(first == outside == 0 for first, outside, _ in ranges)


def prctl(*arguments: int) -> None:
    """Change something about this process (prctl(2)). Raises OSError."""
    call("prctl", *map(ctypes.c_ulong, [*arguments, *[0] * (5 - len(arguments))]))


_NO_NEW_PRIVILEGES = 38


def gain_no_privileges() -> None:
    """Have no program that is executed from now on give this process, or what it starts, more
    privileges than it has. Raises OSError."""
    prctl(_NO_NEW_PRIVILEGES, 1)


def unshare(kinds: int) -> None:
    """Move the calling thread into new namespaces (unshare(2)). Raises OSError.

    A user namespace can only be entered by a process that has no other threads.
    """
    call("unshare", kinds)


def mount(source: str, target: str | Path, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2). Raises OSError."""
    names = [os.fsencode(part) if part else None for part in (source, target, kind)]
    call("mount", *names, ctypes.c_ulong(flags), data.encode() or None)


def unmount(target: str | Path) -> None:
    """Take off the uppermost mount; who still uses it keeps it. Raises OSError."""
    call("umount2", os.fsencode(target), _DETACH)


def unescaped(path: str) -> str:
    """A path out of a list of mounts, where blanks and the like are three octal digits."""
    raw = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), os.fsencode(path))
    return os.fsdecode(raw)


def make_private() -> None:
    """Mounts and unmounts in this process's namespace stay in it. Raises OSError."""
    mount("none", "/", None, RECURSIVE | _PRIVATE)


def become_realtime(priority: int = PRIORITY, thread: int = 0) -> bool:
    """Put a thread (its number for the kernel, 0: the calling one) under SCHED_FIFO, but not what
    it starts. Returns whether that was permitted.

    Without the privilege, RLIMIT_RTPRIO may permit a lower priority: then that is taken.
    """
    return _schedule(thread, os.SCHED_FIFO, priority) or _schedule(
        thread, os.SCHED_FIFO, min(priority, _permitted())
    )


def schedule_threads(priority: int | None, but: type[Thread]) -> None:
    """Put this process's threads, but those of one class, under SCHED_FIFO where that is permitted;
    ``priority`` None: take them back."""
    for thread in threading.enumerate():
        if isinstance(thread, but) or thread.native_id is None:
            continue
        if priority is None:
            _schedule(thread.native_id, os.SCHED_OTHER, 0)
        else:
            become_realtime(priority, thread.native_id)


def _schedule(thread: int, policy: int, priority: int) -> bool:
    """Only a privileged thread could give up the flag again, so that both policies have it."""
    try:
        os.sched_setscheduler(thread, policy | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except OSError:
        return False
    return True


def _permitted() -> int:
    """The highest priority that a user's processes may have; 0: none."""
    most = resource.getrlimit(resource.RLIMIT_RTPRIO)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_RTPRIO, (most, most))
    return most if most >= 0 else PRIORITY


class Sleeper:
    """Sleeps until deadlines, in short naps, so that whoever is to stop is not kept waiting.

    An idle processor, above all a virtual one, may take a millisecond to wake up. So a real-time
    thread wakes up before a deadline by as much as naps were too long of late, and stays awake.
    """

    def __init__(self) -> None:
        self.realtime = False
        self._overslept_ns: deque[int] = deque(maxlen=_NAPS)
        """How much longer each of the last naps was than meant."""
        self._awake_until_ns = 0

    def sleep(self, time_ns: int, deadline_ns: int, stopped: Callable[[], bool]) -> None:
        """Sleep until ``time_ns`` of the monotonic clock, or until ``deadline_ns`` where that time
        is too near it."""
        awake_ns = deadline_ns - self._awake_ns(deadline_ns)
        until_ns = min(time_ns, awake_ns)
        while not stopped() and (left := until_ns - time.monotonic_ns()) > 0:
            nap_ns = min(left, NAP_NS)
            time.sleep(nap_ns / 1e9)
            self._overslept_ns.append(time.monotonic_ns() - (until_ns - left) - nap_ns)
        if awake_ns < time_ns:
            while not stopped() and time.monotonic_ns() < deadline_ns:
                pass
            self._awake_until_ns = max(self._awake_until_ns, deadline_ns)

    def _awake_ns(self, deadline_ns: int) -> int:
        """How long before a deadline the thread is to be awake. Other threads of an ordinary one
        may need the processor."""
        if not self.realtime or not self._overslept_ns:
            return 0
        longest = sorted(self._overslept_ns)[-_LONGER:]
        share = (deadline_ns - self._awake_until_ns) // _AWAKE_PARTS
        return max(0, min(AWAKE_NS, share, longest[0]))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Rare garbage collections and quick thread switches for a ``with`` block."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with rarely_collected():
            yield
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Garbage collections only when some ten thousand objects more are there than before.

    What is let go is freed at once without them, but for cycles: where few are made there is hardly
    any collection, and none of them takes long, but a run of a day does not grow.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class InterruptibleInput(io.FileIO):
    """Standard input of which every signal ends the wait, before it is read on.

    A plain read would go on waiting where the signal came just before the kernel was asked: its
    handler, in Python, runs only between instructions. Takes the process's wake-up descriptor.
    """

    def __init__(self) -> None:
        super().__init__(0, closefd=False)
        self._signalled, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)

    @classmethod
    def as_text(cls) -> io.TextIOWrapper:
        """Return it as lines of UTF-8; what is none is replaced."""
        return io.TextIOWrapper(io.BufferedReader(cls()), encoding="utf-8", errors="replace")

    def readinto(self, buffer: Any, /) -> int | None:
        """Read what there is, once there is something; handlers of signals run meanwhile."""
        while self.fileno() not in select.select([self.fileno(), self._signalled], [], [])[0]:
            with suppress(BlockingIOError):
                os.read(self._signalled, 64)
        return super().readinto(buffer)


if __name__ == "__main__":
    main()
