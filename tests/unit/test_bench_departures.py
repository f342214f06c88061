"""Packets against an exact queue, by hand; and the history that they follow."""

from __future__ import annotations

from itertools import pairwise

import pytest

from testbed.bench.links.departures import LEVELS, errors_s
from testbed.bench.results import radio

FRAME_BITS = 8 * 1514
HISTORY = [(0.0, 10 * FRAME_BITS), (1.0, 0), (2.0, 20 * FRAME_BITS)]
"""Ten packets in the first second, none in the next, then one every 50 ms."""


def test_each_packet_is_held_against_the_queue() -> None:
    exact = [0.05 + n / 10 for n in range(10)] + [2.0 + 0.025 + n / 20 for n in range(5)]
    late = errors_s(HISTORY, [(at, 1514) for at in exact], 2.2)
    assert late == pytest.approx([0.0] * 15, abs=1e-9)


def test_what_is_lost_once_delays_all_that_follow() -> None:
    left = [0.0, 0.1, 0.23, 0.33, 0.43]
    late = errors_s(HISTORY, [(at, 1514) for at in left], 0.5)
    assert late == pytest.approx([0.0, 0.0, 0.03, 0.03, 0.03])


def test_packets_that_never_leave_are_late_by_what_is_left() -> None:
    late = errors_s(HISTORY, [(0.0, 1514)], 0.35)
    assert late == pytest.approx([0.0, 0.25, 0.15, 0.05])
    assert len(errors_s(HISTORY, [], 0.95)) == 10


def test_packets_that_an_exact_queue_never_sends_are_early_by_what_is_left() -> None:
    history = [(0.0, 10 * FRAME_BITS), (0.2, 0)]
    late = errors_s(history, [(0.0, 1514), (0.1, 1514), (0.15, 1514), (0.3, 1514)], 0.5)
    assert late == pytest.approx([0.0, 0.0, -0.05, -0.2])


@pytest.mark.parametrize("levels", LEVELS)
def test_a_radio_link_has_outages_and_every_step_changes_it(levels: tuple[float, ...]) -> None:
    history = radio(levels, 30.0, seed=1)
    assert history[0] == (0.0, levels[-1] * 1e6)
    assert all(before[1] != after[1] for before, after in pairwise(history))
    assert {rate / 1e6 for _, rate in history} == set(levels)
