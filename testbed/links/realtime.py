"""Being on time: real-time scheduling where it is permitted, and no garbage collector in between."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PRIORITY = 20
"""Above everything that is not real-time, below the kernel's own threads at 50 and more."""

_SWITCH_S = 5e-4


def become_realtime(priority: int = PRIORITY) -> bool:
    """Put the calling thread under SCHED_FIFO, not its children. Returns whether that was permitted.

    Without the privilege, RLIMIT_RTPRIO may permit a lower priority: then that is taken.
    """
    return _become(priority) or _become(min(priority, _permitted()))


def _become(priority: int) -> bool:
    policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError:
        return False
    return True


def _permitted() -> int:
    """The highest priority that a user's processes may have; 0: none."""
    most = resource.getrlimit(resource.RLIMIT_RTPRIO)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_RTPRIO, (most, most))
    return most if most >= 0 else PRIORITY


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection, and threads that give way quickly, for the length of a ``with`` block."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
        gc.unfreeze()
