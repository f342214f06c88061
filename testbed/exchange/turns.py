"""Who turns the loop: one thread at a time, and whoever waits for something takes it over when it is free.

The role's own thread does so inside ``receive`` and ``send``: no thread switch lies between the network and the role.
While the role is busy with something else for long, a caretaker does, so that peers are read from all the time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

FOREVER_S = 1e6
_AWAY_S = 0.02
"""For so long nobody need turn the loop: the kernel's buffers hold what comes meanwhile."""


class Turns:
    """``once(timeout)`` handles what there is, or waits for it for at most so many seconds."""

    def __init__(self, once: Callable[[float], None]) -> None:
        self._once = once
        self._free = threading.Condition(threading.Lock())
        self._busy = self._cared = self._ended = False
        self._count = self._wanting = 0
        self.waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when ``once`` shall return: to be waited for by it, and ``calm`` to be called then."""
        self._caretaker = threading.Thread(target=self._care, name="caretaker", daemon=True)
        self._caretaker.start()

    def until(self, done: Callable[[], object], end_s: float) -> bool:
        """Turn the loop until ``done``, or until ``end_s`` of the monotonic clock; whether it is done."""
        while not done():
            left_s = end_s - time.monotonic()
            if left_s <= 0 or self._ended:
                return False
            if self._take(done, left_s):
                self._turn(left_s)
        return True

    def calm(self, _events: int = 0) -> None:
        """Take back the call for ``once`` to return."""
        os.eventfd_read(self.waker)

    def end(self) -> None:
        """Nobody turns the loop any more."""
        with self._free:
            self._ended = True
            os.eventfd_write(self.waker, 1)
            self._free.notify_all()
        if threading.current_thread() is not self._caretaker:
            self._caretaker.join()
        with self._free:
            while self._busy:
                self._free.wait()
        os.close(self.waker)

    def _take(self, done: Callable[[], object], left_s: float) -> bool:
        """Become the one who turns it; False after waiting for another one's turn to end, or if it is ``done`` already.

        A turn that ended before this one held the lock may have done it, and told nobody.
        """
        with self._free:
            if done():
                return False
            if not self._busy:
                self._busy = True
                return True
            self._wanting += 1
            # others end their turn when something has happened; calling them back for nothing, two who wait would
            # go on calling each other
            if self._cared:
                os.eventfd_write(self.waker, 1)
            self._free.wait(left_s)
            self._wanting -= 1
            return False

    def _turn(self, left_s: float) -> None:
        try:
            self._once(left_s)
        finally:
            with self._free:
                self._busy = False
                self._count += 1
                if self._wanting or self._ended:
                    self._free.notify_all()

    def _care(self) -> None:
        """Take over when nobody has turned the loop for a while, until somebody wants to."""
        while not self._ended:
            before = self._count
            time.sleep(_AWAY_S)
            with self._free:
                if self._busy or self._count != before:
                    continue
                self._busy = self._cared = True
            try:
                while not (self._wanting or self._ended):
                    self._once(FOREVER_S)
            finally:
                self._cared = False
                self._turn(0.0)
