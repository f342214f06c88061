"""Bursts and bundles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.links.tc.parameters import (
    bundle_segments,
    bundle_sizes,
    burst_bytes,
    ifb_name,
    segments,
)
from testbed.scenario.link_state import FRAME_BYTES
from testbed.scenario.timeline import Timeline

MBIT = 1_000_000


@given(st.integers(1, 400_000 * MBIT))
def test_a_burst_is_a_quarter_or_half_of_a_millisecond_and_at_least_a_frame(rate: int) -> None:
    asked = rate / (32_000 if rate < 2000 * MBIT else 16_000)
    assert burst_bytes(rate) >= FRAME_BYTES
    assert asked <= burst_bytes(rate) <= max(FRAME_BYTES, asked + 1)
    assert (burst_bytes(100 * MBIT), burst_bytes(2000 * MBIT)) == (3125, 125_000)


@pytest.mark.parametrize(
    ("rate", "step", "segments"),
    [
        (20 * MBIT, 0.1, 1),  # 0.25 ms is 625 B
        (100 * MBIT, 0.1, 2),  # 3125 B
        (1300 * MBIT, 0.1, 26),  # 40.6 kB
        (1300 * MBIT, 0.01, 10),  # 100 us is 16.25 kB
        (100 * MBIT, None, 2),
        (5000 * MBIT, None, 43),
        (0, None, 1),
        (1, 1e-6, 1),
    ],
)
def test_bundles_are_short_against_steps_and_messages(
    rate: int, step: float | None, segments: int
) -> None:
    assert bundle_segments(rate, step) == segments
    assert bundle_segments(rate, step, per_packet=True) == 1


class Asked(Timeline):
    """What bundles depend on, and nothing else."""

    def __init__(self, lowest: int, step: float | None, per_packet: bool = False) -> None:
        self._asked = lowest, step, per_packet

    def lowest_rate(self) -> int:
        return self._asked[0]

    def shortest_step_s(self) -> float | None:
        return self._asked[1]

    def per_packet(self) -> bool:
        return self._asked[2]


@pytest.mark.parametrize(
    ("rate", "step", "sizes"),
    [
        (50 * MBIT, 0.1, [1, 2, 4]),  # 1 ms is 6250 B
        (50 * MBIT, 0.06, [1, 2]),  # 1 % of the step is 0.6 ms
        (50 * MBIT, 0.02, [1]),
        (50 * MBIT, 10.0, [1, 2, 4]),  # 1 ms
        (50 * MBIT, None, [1, 2, 4]),
        (150 * MBIT, 0.1, [3, 6, 12]),
        (400 * MBIT, None, [8, 16, 32, 33]),
        (800 * MBIT, None, [16, 32, 43]),
        (5000 * MBIT, None, [43]),
        (0, None, [1]),
    ],
)
def test_longer_bundles_last_1_ms_and_1_percent_of_a_step_at_most(
    rate: int, step: float | None, sizes: list[int]
) -> None:
    assert bundle_sizes(Asked(rate, step)) == sizes
    assert bundle_sizes(Asked(rate * 2, None if step is None else step / 2), 2.0) == sizes
    assert bundle_sizes(Asked(rate, step, per_packet=True)) == [1]


def test_a_run_has_the_bundle_that_its_machine_needs_as_far_as_it_may() -> None:
    stepping = Asked(150 * MBIT, 0.1)
    assert [segments(stepping, least) for least in (1, 3, 6, 12, 24)] == [3, 3, 6, 12, 12]
    assert segments(stepping) == 3
    assert segments(Asked(150 * MBIT, 0.1, per_packet=True), 12) == 1


def test_device_names_fit() -> None:
    assert len(ifb_name(2**31 - 1)) <= 15
