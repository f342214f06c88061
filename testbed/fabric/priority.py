"""Who runs first when there are more threads than processors.

A host that stands in for several machines must not let one node's computation hold up another node's
messages: on real machines they have nothing to do with each other. So computation, and the writing of
records, give way to everything else. No privilege is needed to give way.
"""

from __future__ import annotations

import os


def give_way() -> None:
    """From now on this thread runs when no other wants to; it cannot be taken back."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
