"""Boots the guest, passes on what its command writes, and returns its exit status."""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from testbed.errors import ExperimentError, MachineError
from testbed.guest import memory
from testbed.guest.machine import CONSOLE, booted
from testbed.guest.order import ERRORS, OUTPUT, STOP, Order, Outcome
from testbed.guest.relay import Relay

_LOOK_S = 0.05
_GRACE_S = 30.0
"""How long a command may take to end once it was asked to."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PANIC = re.compile(r"Kernel panic.*|.*set fp regs failed.*|.*Out of memory.*")
_TAIL_LINES = 5


def run(
    order: Order,
    *,
    size: int | None = None,
    limit_s: float | None = None,
    disk: Path | None = None,
    output: int = 1,
    errors: int = 2,
) -> int:
    """Boot, run, switch off; returns the command's exit status (128 + n: killed by signal n).

    ``size`` is the memory in bytes (None: what this machine can spare), ``limit_s`` seconds of wall time for all of
    it, ``disk`` an ext4 image that the guest sees as ``/dev/ubda`` and whose changes are dropped; ``output`` and
    ``errors`` are descriptors. Raises MachineError when the guest cannot boot, breaks down, or lacks the program,
    ExperimentError when the command takes longer than its limit.
    """
    size = memory.size(size)
    with tempfile.TemporaryDirectory(prefix="narrows-guest-", dir=memory.folder(size)) as name:
        folder = Path(name)
        order.write(folder)
        with (
            Relay(folder / OUTPUT, output) as out,
            Relay(folder / ERRORS, errors) as err,
            booted(folder, size, disk) as process,
        ):
            watch = _Watch(process, folder, limit_s)
            watch.attend([out, err])
        outcome = Outcome.read(folder)
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
    """What a guest that left no outcome died of."""
    if watch.killed_at != float("inf"):
        return ExperimentError("the guest was ended before its command had ended")
    lines = console.read_text(errors="replace").splitlines()
    panic = next((found[0] for line in lines if (found := _PANIC.search(line))), None)
    said = panic or "; ".join(lines[-_TAIL_LINES:]) or "it said nothing"
    return MachineError(
        f"the guest with {size / memory.GIB:.1f} GiB of memory broke down: {said}",
        fix="If it lacked memory, give it more or use fewer nodes; otherwise use a host whose own kernel has netem",
    )
