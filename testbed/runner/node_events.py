"""Events of nodes during a run (pause, resume, kill, restart), and a watch on the host's
processors.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.errors import ExperimentError
from testbed.records.events import HostSample, NodeChanged
from testbed.records.intervals import ClockRecord
from testbed.runner.session import backlog_drops

if TYPE_CHECKING:
    from testbed.runner.session import Session
    from testbed.scenario.node_timeline import NodeChange


class NodeEventScheduler:
    """Carries out ``changes`` (by time) from ``t0_ns`` on, in a thread; ``write`` gets their
    records.

    What goes wrong becomes an error of the node that it concerned.
    """

    def __init__(
        self,
        session: Session,
        changes: Iterable[NodeChange],
        t0_ns: int,
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        self._session, self._changes = session, list(changes)
        self._t0_ns, self._write = t0_ns, write
        self._ended = Event()
        self._thread = Thread(target=self._run, name="disturbances", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin no more changes, and let every node that is still paused go on."""
        self._ended.set()
        self._thread.join()
        for node in sorted(self._session.paused):
            self._session.resume(node)

    def _run(self) -> None:
        for change in self._changes:
            if self._ended.wait(max(0.0, change.time_s - self._now())):
                return
            try:
                self._apply(change)
            except Exception as error:  # whatever it is, the run must hear of it
                self._session.fail(change.node, ExperimentError(f"{change.action}: {error}"))
                return

    def _apply(self, change: NodeChange) -> None:
        actions: dict[str, Callable[[], None]] = {
            "pause": lambda: self._session.pause(change.node),
            "resume": lambda: self._session.resume(change.node),
            "kill": lambda: self._session.kill(change.node, change.time_s),
            "restart": lambda: self._session.restart(change.node),
        }
        actions[change.action]()
        record = NodeChanged(change.node, change.action, change.time_s, self._now())
        self._write(record.to_json())

    def _now(self) -> float:
        return (time.monotonic_ns() - self._t0_ns) / 1e9


EVERY_S = 0.1
_IDLE, _WAITING, _STEAL, _LAST = 4, 5, 8, 9
"""Indices in the first line of /proc/stat; what follows the last is counted before."""

_STAT, _PRESSURE = Path("/proc/stat"), Path("/proc/pressure/cpu")


def clock_record(t0_ns: int) -> ClockRecord:
    """Read both clocks and return the record of ``t0_ns`` (monotonic)."""
    before_ns, unix_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    return ClockRecord(unix_ns + t0_ns - (before_ns + after_ns) // 2)


class Reading(NamedTuple):
    """Counters of the host since its start, seconds summed over processors."""

    all_s: float
    idle_s: float
    stolen_s: float
    pressed_s: float | None
    """Time in which something waited for a processor; None where the kernel does not count it."""
    backlog_drops: int


class HostWatch:
    """Looks every 100 ms until ``stop``; ``write`` gets a record of each look."""

    def __init__(self, t0_ns: int, write: Callable[[dict[str, Any]], None]) -> None:
        self._t0_ns, self._write = t0_ns, write
        self._error: OSError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look a last time and end. Raises OSError if a record could not be written."""
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._look()
        except OSError as error:  # of a full disk, for one
            self._error = error

    def _look(self) -> None:
        before, from_s = reading(), self._now()
        ended = False
        while not ended:
            ended = self._ended.wait(EVERY_S)
            after, to_s = reading(), self._now()
            self._write(between(before, after, from_s, to_s).to_json())
            before, from_s = after, to_s

    def _now(self) -> float:
        return (time.monotonic_ns() - self._t0_ns) / 1e9


def between(before: Reading, after: Reading, from_s: float, to_s: float) -> HostSample:
    """Return what the host did from one reading to the next. Pure."""
    counted, pressure = after.all_s - before.all_s, None
    if before.pressed_s is not None and after.pressed_s is not None and to_s > from_s:
        pressure = min(1.0, (after.pressed_s - before.pressed_s) / (to_s - from_s))
    return HostSample(
        from_s,
        to_s,
        stolen_s=max(0.0, after.stolen_s - before.stolen_s),
        idle_share=(after.idle_s - before.idle_s) / counted if counted > 0 else 1.0,
        pressure=pressure,
        backlog_drops=after.backlog_drops - before.backlog_drops,
    )


def reading() -> Reading:
    """All counters now."""
    ticks = _ticks()
    return Reading(
        all_s=sum(ticks[1:_LAST]),
        idle_s=ticks[_IDLE] + ticks[_WAITING],
        stolen_s=ticks[_STEAL],
        pressed_s=_pressed_s(),
        backlog_drops=backlog_drops(),
    )


def stolen_s() -> float:
    """Processor seconds stolen since the host was started, over all processors."""
    return _ticks()[_STEAL]


def _ticks() -> list[float]:
    """The first line of /proc/stat in seconds; what stands for its name is 0."""
    with _STAT.open() as file:
        fields = file.readline().split()
    return [0.0, *(int(field) / os.sysconf("SC_CLK_TCK") for field in fields[1:])]


def _pressed_s() -> float | None:
    """The total of ``some`` in /proc/pressure/cpu, which kernels without PSI do not have."""
    try:
        first = _PRESSURE.read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return None
    name, _, total = first[-1].partition("=")
    return int(total) / 1e6 if first[0] == "some" and name == "total" else None
