"""When the kernel took changes: its own notices of them, timed as they come."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Thread

from pyroute2.netlink.rtnl import RTM_NEWQDISC, RTM_NEWTCLASS, RTNLGRP_TC
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.links.channel import ROUTE, listener
from testbed.links.messages import Reader
from testbed.process import become_realtime

_BUFFER_BYTES, _NOTICE_BYTES = 1 << 21, 1 << 16
_HEAD = Reader(tcmsg, "header.type", "index")
_EARLIEST_S = 6e-3
"""A change may be made this much before it is due."""


class Witness(Thread):
    """Listens from construction to ``end``; ``times_ns`` are of the monotonic clock."""

    def __init__(self, netns: str, index: int, kind: int) -> None:
        super().__init__(name="witness", daemon=True)
        self.times_ns: list[int] = []
        self._index, self._kind, self._ended = index, kind, False
        self._failure: OSError | None = None
        self._socket = listener(netns, [RTNLGRP_TC], _BUFFER_BYTES, ROUTE)
        self._socket.settimeout(0.1)

    def run(self) -> None:
        """The thread's work."""
        become_realtime(1)
        try:
            self._listen()
        except OSError as error:  # notices were lost, for example
            self._failure = error

    def _listen(self) -> None:
        with self._socket:
            while not self._ended:
                try:
                    notice = self._socket.recv(_NOTICE_BYTES)
                except TimeoutError:
                    continue
                now_ns = time.monotonic_ns()
                if _HEAD(notice) == (self._kind, self._index):
                    self.times_ns.append(now_ns)

    def end(self) -> None:
        """Listen no more. Raises OSError where listening ended before."""
        self._ended = True
        self.join()
        if self._failure is not None:
            raise self._failure


@contextmanager
def witness(netns: str, index: int, of_class: bool) -> Iterator[Witness]:
    """Listen for the length of a ``with`` block to changes of a device's class, or of its disciplines."""
    listening = Witness(netns, index, RTM_NEWTCLASS if of_class else RTM_NEWQDISC)
    listening.start()
    try:
        yield listening
    finally:
        listening.end()


def lateness_s(due_s: Iterable[float], seen_s: Iterable[float]) -> tuple[list[float], int]:
    """How late each change was seen, in order, and how many never were. Pure.

    A change is taken for seen by the first notice that no earlier change has, and that comes no more than
    6 ms before it is due.
    """
    late, missing = [], 0
    notices = iter(sorted(seen_s))
    for due in sorted(due_s):
        seen = next((at for at in notices if at >= due - _EARLIEST_S), None)
        if seen is None:
            missing += 1
        else:
            late.append(seen - due)
    return late, missing
