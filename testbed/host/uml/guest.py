"""The guest: whether it can run here, its memory, its boot, and what its command writes passed on
until its exit status.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

from testbed.errors import ExperimentError, MachineError
from testbed.host import packages, paths
from testbed.host.packages import Need, have
from testbed.host.packages import run as run_program
from testbed.host.paths import cache
from testbed.host.uml import watchdog
from testbed.host.uml.inside import ERRORS, OUTPUT, STOP, GuestOrder, GuestOutcome
from testbed.process import PACKAGE, environment, module_command

GIB = 2**30
ENOUGH = 4 * GIB
"""For a server and a few workers that import torch, and what they write."""
LEAST = GIB // 2
_SHARE = 0.75
_SHARED_MEMORY = Path("/dev/shm")
_INFO = Path("/proc/meminfo")


def available(info: Path = _INFO) -> int:
    """Bytes that programs can still have on this host."""
    for line in info.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def guest_memory_bytes(requested: int | None) -> int:
    """Bytes for the guest: as requested, else up to 4 GiB of what is free."""
    spare = int(available() * _SHARE)
    if requested is None and spare >= LEAST:
        return min(ENOUGH, spare)
    if requested is not None and LEAST <= requested <= available():
        return requested
    wanted = f"{(requested or LEAST) / GIB:.1f} GiB"
    raise MachineError(
        f"a guest of {wanted} does not fit: {available() / GIB:.1f} GiB of memory are free",
        fix=f"Free some, or ask for less, but no less than {LEAST / GIB:g} GiB",
    )


def guest_memory_folder(needed: int) -> Path:
    """Where there is room for it, in memory if there can be. The guest takes only what it uses."""
    places = [_SHARED_MEMORY, Path(tempfile.gettempdir())]
    for folder in places:
        if _usable(folder, needed):
            return folder
    raise MachineError(
        f"neither {places[0]} nor {places[1]} has room for the guest's memory, {needed / GIB:.1f} "
        "GiB",
        fix="Make room, or name a folder in TMPDIR on a file system that may hold programs",
    )


def _usable(folder: Path, needed: int) -> bool:
    """The guest's memory holds its programs too, so ``noexec`` will not do."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize >= needed and not state.f_flag & os.ST_NOEXEC


_SOURCE = PACKAGE / "host" / "uml" / "xstate.c"
_CPU = Path("/proc/cpuinfo")
_LARGER = {"amx_tile", "apx"}
"""Features whose registers User-mode Linux has no room for."""


def needed(cpuinfo: Path = _CPU) -> bool:
    """Return whether this processor has registers that User-mode Linux does not know."""
    for line in cpuinfo.read_text().splitlines():
        if line.startswith("flags"):
            return not _LARGER.isdisjoint(line.split())
    return False


def library() -> Path:
    """The library, compiled where it has not been. Raises CommandFailed when it cannot be."""
    path = cache("guest") / f"xstate-{paths.of(_SOURCE)}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            draft = Path(folder) / path.name
            run_program(["cc", "-O2", "-shared", "-fPIC", "-o", str(draft), str(_SOURCE), "-ldl"])
            draft.replace(path)
    return path


MODULES = Path("/usr/lib/uml/modules")
_PROGRAM = "linux.uml"
_OVERLAY = "kernel/fs/overlayfs/overlay.ko"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A User-mode Linux: the program, and which release its modules are."""

    program: str
    release: str


def find() -> Kernel | None:
    """The newest kernel whose modules are there, or None."""
    program = shutil.which(_PROGRAM)
    releases = sorted(path.parents[3].name for path in MODULES.glob(f"*/{_OVERLAY}"))
    return Kernel(program, releases[-1]) if program and releases else None


def _compiler() -> bool:
    return not needed() or (shutil.which("cc") is not None and Path("/usr/include/elf.h").exists())


GUEST = (
    Need("User-mode Linux", lambda: find() is not None, ("user-mode-linux",)),
    Need("programs for kernel modules", lambda: have("modprobe"), ("kmod",)),
    Need("e2fsprogs", lambda: have("mkfs.ext4"), ("e2fsprogs",)),
    Need("iproute2", lambda: have("ip"), ("iproute2",)),
    Need("C compiler (this processor is newer than User-mode Linux)", _compiler, ("gcc",)),
    Need("C headers", _compiler, ("libc6-dev",)),
)
"""Packages that ``testbed setup`` installs."""


def require() -> Kernel:
    """The kernel. Raises MachineError with the command that installs what is missing."""
    lacking = packages.missing(GUEST)
    kernel = find()
    if lacking or kernel is None:
        names = ", ".join(need.name for need in lacking)
        wanted = " ".join(dict.fromkeys(need.packages[0] for need in lacking))
        raise MachineError(
            f"the guest kernel needs what is not installed: {names}",
            fix=f"Run `testbed setup` as root, or: apt-get install {wanted}",
        )
    return kernel


CONSOLE = "console"
"""File in the shared folder with what the kernel and the programs before the command write."""

_INIT = PACKAGE / "host" / "uml" / "init.sh"
_FIXED = (
    "root=/dev/root",
    "rootfstype=hostfs",
    "rootflags=/",
    "rw",
    "con=null",
    "con0=fd:0,fd:1",
    "panic=1",
    "quiet",
    "init=/bin/sh",
    "--",
)


@contextmanager
def booted(folder: Path, memory: int, disk: Path | None) -> Iterator[subprocess.Popen[bytes]]:
    """A kernel that boots, and does not outlive this process; killed at the end if it still runs.

    ``folder`` is shared with it, ``memory`` in bytes, ``disk`` an image whose changes go to
    ``folder``. Raises MachineError when it is not installed.
    """
    command = _command(folder, memory, disk)
    with (folder / CONSOLE).open("wb") as console:
        process = subprocess.Popen(
            module_command("testbed.host.uml.watchdog", str(folder), *command),
            env=_environment(folder),
            stdin=subprocess.PIPE,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.communicate(watchdog.END)


def _command(folder: Path, memory: int, disk: Path | None) -> list[str]:
    size = f"mem={memory >> 20}M"
    disks = [f"ubd0={folder}/changes,{disk}"] if disk else []
    arguments = [str(_INIT), str(folder), sys.executable, str(PACKAGE.parent)]
    program = require().program
    return [program, size, *disks, f"uml_dir={folder}/", *_FIXED, *map(_quoted, arguments)]


def _environment(folder: Path) -> dict[str, str]:
    preload = {"LD_PRELOAD": str(library())} if needed() else {}
    return environment(TMPDIR=str(folder), **preload)


def _quoted(argument: str) -> str:
    """For the kernel's command line, which knows no escapes."""
    if '"' in argument:
        raise MachineError(
            f"the guest cannot be given a path with a quote in it: {argument}",
            fix="Rename the folder",
        )
    return f'"{argument}"'


_CHUNK = 1 << 16


class Relay:
    """Passes on what is new whenever it is asked to."""

    def __init__(self, path: Path, target: int) -> None:
        path.touch()
        self._source, self._target = os.open(path, os.O_RDONLY), target

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.move()
        finally:
            os.close(self._source)

    def move(self) -> None:
        """Pass on everything new. Raises OSError where nobody reads it."""
        while chunk := os.read(self._source, _CHUNK):
            while chunk:
                chunk = chunk[os.write(self._target, chunk) :]


_LOOK_S = 0.05
_GRACE_S = 30.0
"""How long a command may take to end once it was asked to."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PANIC = re.compile(r"Kernel panic.*|.*set fp regs failed.*|.*Out of memory.*")
_TAIL_LINES = 5


def run(
    order: GuestOrder,
    *,
    size: int | None = None,
    limit_s: float | None = None,
    disk: Path | None = None,
    output: int = 1,
    errors: int = 2,
) -> int:
    """Boot, run, switch off; returns the command's exit status (128 + n: killed by signal n).

    ``size`` is the memory in bytes (None: what this machine can spare), ``limit_s`` seconds of wall
    time for all of it, ``disk`` an ext4 image that the guest sees as ``/dev/ubda`` and whose
    changes are dropped; ``output`` and ``errors`` are descriptors. Raises MachineError when the
    guest cannot boot, breaks down, or lacks the program, ExperimentError when the command takes
    longer than its limit.
    """
    size = guest_memory_bytes(size)
    with tempfile.TemporaryDirectory(
        prefix="narrows-guest-", dir=guest_memory_folder(size)
    ) as name:
        folder = Path(name)
        order.write(folder)
        with (
            Relay(folder / OUTPUT, output) as out,
            Relay(folder / ERRORS, errors) as err,
            booted(folder, size, disk) as process,
        ):
            watch = _Watch(process, folder, limit_s)
            watch.attend([out, err])
        outcome = GuestOutcome.read(folder)
        if watch.overdue:
            raise ExperimentError(f"the guest was ended: it took longer than {limit_s:g} s")
        if outcome is None:
            raise _broken(watch, folder / CONSOLE, size)
    if outcome.problem:
        raise MachineError(outcome.problem)
    return outcome.status


class _Watch:
    """Over a guest that runs: its limit, and the signals that this process gets for it."""

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, limit_s: float | None
    ) -> None:
        self.process, self.folder = process, folder
        self.deadline = float("inf") if limit_s is None else time.monotonic() + limit_s
        self.killed_at = float("inf")
        self.overdue = False

    def attend(self, relays: Sequence[Relay]) -> None:
        """Until the guest has switched itself off, or did not although it was asked to."""
        with _noting_signals(self.stop):
            while self.process.poll() is None and time.monotonic() < self.killed_at:
                for relay in relays:
                    relay.move()
                if time.monotonic() > self.deadline and not self.overdue:
                    self.overdue = True
                    self.stop(signal.SIGTERM)
                time.sleep(_LOOK_S)

    def stop(self, number: int) -> None:
        """Ask the command to end; the second time there is no more patience."""
        asked_before = self.killed_at != float("inf")
        self.killed_at = time.monotonic() + (0 if asked_before else _GRACE_S)
        (self.folder / f"{STOP}{number:d}").touch()


@contextmanager
def _noting_signals(stop: Callable[[int], None]) -> Iterator[None]:
    def note(number: int, _frame: FrameType | None) -> None:
        stop(number)

    before = {each: signal.signal(each, note) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _broken(watch: _Watch, console: Path, size: int) -> Exception:
    """Return the cause of death of a guest that left no outcome."""
    if watch.killed_at != float("inf"):
        return ExperimentError("the guest was ended before its command had ended")
    lines = console.read_text(errors="replace").splitlines()
    panic = next((match[0] for line in lines if (match := _PANIC.search(line))), None)
    said = panic or "; ".join(lines[-_TAIL_LINES:]) or "it said nothing"
    return MachineError(
        f"the guest with {size / GIB:.1f} GiB of memory broke down: {said}",
        fix="If it lacked memory, give it more or use fewer nodes; otherwise use a host whose own "
        "kernel has netem",
    )
