"""Being on time: real-time scheduling where it is permitted, and no garbage collector in between."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PRIORITY = 20
"""Above everything that is not real-time, below the kernel's own threads at 50 and more."""

_SWITCH_S = 5e-4


def become_realtime(priority: int = PRIORITY) -> bool:
    """Put the calling thread under SCHED_FIFO, not its children. Returns whether that was permitted."""
    try:
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError:
        return False
    return True


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
