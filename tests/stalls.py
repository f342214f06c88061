"""How long this machine lets wait what nothing but the machine itself could hold up.

Run as a program it writes two times, in seconds, for each line that it reads, and begins anew: the longest that a real-time
thread waited for its processor (there is one on each, which wakes up every ``LOOK_S``), and the longest that the kernel took to
set what needs its lock on network devices. A hypervisor that lets a virtual machine stand still does not always count that as
time it has taken; and whoever makes or removes a namespace has that lock for up to tenths of a second.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from functools import partial

LOOK_S = 0.005
PRIORITY = 50
"""Above the agent's real-time thread, which must not look like a machine that stands still."""
_QUEUE_LENGTH, _SET_QUEUE_LENGTH = 0x8942, 0x8943  # SIOCGIFTXQLEN, SIOCSIFTXQLEN


class Looker:
    """A real-time thread; ``look`` waits for what it looks at, and returns for how long."""

    def __init__(self, look: Callable[[], float], processors: set[int]) -> None:
        self.worst_s = 0.0
        self._look, self._processors = look, processors
        threading.Thread(target=self._run, daemon=True).start()

    def take(self) -> float:
        """The longest wait since the last call, seconds; one that goes on counts in the next."""
        worst_s, self.worst_s = self.worst_s, 0.0
        return worst_s

    def _run(self) -> None:
        os.sched_setaffinity(0, self._processors)
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
            while True:
                waited_s = self._look()
                self.worst_s = max(self.worst_s, waited_s)
        except PermissionError:
            return  # what an ordinary user waits for may be other tests


def asleep() -> float:
    """Sleep; returns how much longer than meant, seconds."""
    due_s = time.monotonic() + LOOK_S
    time.sleep(LOOK_S)
    return time.monotonic() - due_s


def devices_locked(opened: socket.socket) -> float:
    """Set the loopback's queue length to what it is; returns the seconds that took. Raises PermissionError."""
    time.sleep(LOOK_S)
    request = ioctl(opened, _QUEUE_LENGTH, struct.pack("16s24x", b"lo"))
    begun_s = time.monotonic()
    ioctl(opened, _SET_QUEUE_LENGTH, request)
    return time.monotonic() - begun_s


def main() -> None:
    """Until standard input ends."""
    processors = os.sched_getaffinity(0)
    lookers = [Looker(asleep, {processor}) for processor in processors]
    locked = Looker(partial(devices_locked, socket.socket(type=socket.SOCK_DGRAM)), processors)
    with suppress(PermissionError):  # as the lookers, which wait for the interpreter's lock
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    for _ in sys.stdin:
        sys.stdout.write(f"{max(looker.take() for looker in lookers)} {locked.take()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
