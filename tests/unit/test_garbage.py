"""Garbage is collected in the longest run, rarely."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from testbed.process import undisturbed
from testbed.runner.signals import seldom_collected


class Cycle:
    """What only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("block", [undisturbed, seldom_collected])
def test_cycles_do_not_pile_up(block: Callable[[], AbstractContextManager[None]]) -> None:
    before = gc.get_threshold()
    alive: weakref.WeakSet[Cycle] = weakref.WeakSet()
    with block():
        begun = sum(each["collections"] for each in gc.get_stats())
        for _ in range(200_000):
            alive.add(Cycle())
        made = sum(each["collections"] for each in gc.get_stats()) - begun
        assert len(alive) < 60_000
    assert 5 <= made <= 100
    assert gc.get_threshold() == before
    assert gc.isenabled()
