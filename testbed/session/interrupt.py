"""Ctrl-C, SIGTERM and a closed terminal end a run in order: what is finished is kept, and nothing is left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from testbed.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """The first signal raises Interrupted; later ones are ignored, so that cleaning up is not cut short."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    before = {each: signal.signal(each, interrupt) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def shielded() -> Iterator[None]:
    """Signals wait until what is in here is done, and are then raised unless it failed itself.

    For cleaning up and for writing down: half of either would be worse than a second's delay.
    """
    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if came:
        raise Interrupted(signal.Signals(came[0]).name)
