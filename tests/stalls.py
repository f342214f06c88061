"""How long this machine lets a thread wait that nothing but the machine itself could hold up.

Run as a program it writes the longest wait, in seconds, for each line that it reads, and begins anew: it has a real-time thread
on each processor that wakes up every ``LOOK_S``. A hypervisor that lets a virtual machine stand still does not always count
that as time it has taken.
"""

from __future__ import annotations

import os
import sys
import threading
import time

LOOK_S = 0.005
PRIORITY = 50
"""Above the agent's real-time thread, which must not look like a machine that stands still."""


class Looker:
    """A thread that is bound to one processor."""

    def __init__(self, processor: int) -> None:
        self.worst_s = 0.0
        self._processor = processor
        threading.Thread(target=self._run, daemon=True).start()

    def take(self) -> float:
        """The longest wait since the last call, seconds; one that goes on counts in the next."""
        worst_s, self.worst_s = self.worst_s, 0.0
        return worst_s

    def _run(self) -> None:
        os.sched_setaffinity(0, {self._processor})
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
        except PermissionError:
            return  # what an ordinary thread waits for may be other tests
        while True:
            due_s = time.monotonic() + LOOK_S
            time.sleep(LOOK_S)
            self.worst_s = max(self.worst_s, time.monotonic() - due_s)


def main() -> None:
    """Until standard input ends."""
    lookers = [Looker(processor) for processor in os.sched_getaffinity(0)]
    for _ in sys.stdin:
        sys.stdout.write(f"{max(looker.take() for looker in lookers)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
