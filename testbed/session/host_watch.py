"""Watches for processor time that a hypervisor gives to others while a run goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.record.events import HostSample

EVERY_S = 0.1
_STEAL = 8
"""Place of the stolen ticks in the first line of /proc/stat."""


class HostWatch:
    """Looks every 100 ms until ``stop``; ``write`` gets a record whenever time was stolen."""

    def __init__(self, t0_ns: int, write: Callable[[dict[str, Any]], None]) -> None:
        self._t0_ns, self._write = t0_ns, write
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look a last time and end."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        before, from_s = stolen_s(), self._now()
        while True:
            ended = self._ended.wait(EVERY_S)
            after, to_s = stolen_s(), self._now()
            if after > before:
                # The kernel writes whole ticks: what is seen now may have begun one look earlier.
                span = HostSample(from_s - EVERY_S, to_s, after - before)
                self._write(span.to_json())
            before, from_s = after, to_s
            if ended:
                return

    def _now(self) -> float:
        return (time.monotonic_ns() - self._t0_ns) / 1e9


def stolen_s() -> float:
    """Processor seconds stolen since the host was started, over all processors."""
    with Path("/proc/stat").open() as file:
        fields = file.readline().split()
    return int(fields[_STEAL]) / os.sysconf("SC_CLK_TCK")
