"""Bursts and bundles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.links.plan import bundle_segments, burst_bytes, ifb_name
from testbed.scenario.shape import FRAME_BYTES

MBIT = 1_000_000


@given(st.integers(1, 400_000 * MBIT))
def test_a_burst_is_half_a_millisecond_and_at_least_a_frame(rate: int) -> None:
    assert burst_bytes(rate) >= FRAME_BYTES
    assert burst_bytes(rate) >= rate / 16_000
    assert burst_bytes(rate) <= max(FRAME_BYTES, rate / 16_000 + 1)


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


def test_device_names_fit() -> None:
    assert len(ifb_name(2**31 - 1)) <= 15
