"""Pacing, on a clock that the test moves."""

from __future__ import annotations

import pytest
from virtual_links import lone_node

from testbed.fabric.sim.clock import VirtualClock
from testbed.training.pacing import Pace, times_of
from testbed.units import Duration


def held(pace_s: float | None, work_s: float, start_s: float = 1.0) -> tuple[bool, float]:
    """Whether a step that begins at ``start_s`` and works for ``work_s`` overran, and when it ended."""
    clock = VirtualClock()
    node = lone_node(clock)

    def step() -> tuple[bool, float]:
        node.sleep_until(start_s)
        node.sleep_until(start_s + work_s)
        times = times_of(None if pace_s is None else Duration(pace_s), 1, "worker")
        return Pace(node, times).hold(7, start_s), node.now()

    result: tuple[bool, float] = clock.run({"step": step})["step"]
    return result


def test_short_work_is_held_to_the_pace() -> None:
    assert held(0.5, 0.125) == (False, 1.5)


def test_work_that_just_fits_does_not_overrun() -> None:
    assert held(0.5, 0.5) == (False, 1.5)


def test_long_work_overruns_and_is_not_made_longer() -> None:
    assert held(0.5, 0.75) == (True, 1.75)


@pytest.mark.parametrize("work_s", [0.0, 0.25, 4.0])
def test_without_a_pace_work_takes_its_time(work_s: float) -> None:
    assert held(None, work_s) == (False, 1.0 + work_s)
