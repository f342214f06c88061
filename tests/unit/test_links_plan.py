"""Bursts, bundles and the commands shown by the dry run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.links.plan import bundle_segments, burst_bytes, ifb_name, tc_commands
from testbed.scenario.shape import FRAME_BYTES, End, Shape

MBIT = 1_000_000


@given(st.integers(1, 400_000 * MBIT))
def test_a_burst_is_a_quarter_millisecond_and_at_least_a_frame(rate: int) -> None:
    assert burst_bytes(rate) >= FRAME_BYTES
    assert burst_bytes(rate) >= rate / 32_000
    assert burst_bytes(rate) <= max(FRAME_BYTES, rate / 32_000 + 1)


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


def test_tc_commands_name_every_value() -> None:
    root, leaf_class, leaf = tc_commands(End("worker-0", "up"), Shape(100 * MBIT, 625_000), "data")
    assert root == "tc qdisc add dev data root handle 4e57: htb default 10"
    assert leaf_class == (
        "tc class add dev data parent 4e57: classid 4e57:10 htb rate 100000000bit ceil 100000000bit "
        "burst 3125b cburst 3125b quantum 60000"
    )
    assert leaf == "tc qdisc add dev data parent 4e57:10 handle 4e58: bfifo limit 625000b"


@pytest.mark.parametrize(("drop", "word"), [(True, "dropped"), (False, "wait")])
def test_an_outage_is_shown_as_a_comment(drop: bool, word: str) -> None:
    (line,) = tc_commands(End("server", "down"), Shape(0, 1000, drop), "port0")
    assert line.startswith("# server down: outage")
    assert word in line


def test_device_names_fit() -> None:
    assert len(ifb_name(2**31 - 1)) <= 15
