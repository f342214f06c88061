"""Bursts, bundles and the commands shown by the dry run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.links.plan import bundle_segments, burst_bytes, ifb_name, tc_commands
from testbed.scenario.shape import FRAME_BYTES, End, Shape

MBIT = 1_000_000


@given(st.integers(1, 400_000 * MBIT))
def test_a_burst_is_a_millisecond_and_at_least_a_frame(rate: int) -> None:
    assert burst_bytes(rate) >= FRAME_BYTES
    assert burst_bytes(rate) >= rate / 8000
    assert burst_bytes(rate) <= max(FRAME_BYTES, rate / 8000 + 1)


@pytest.mark.parametrize(
    ("rate", "step", "segments"),
    [
        (20 * MBIT, 0.1, 1),  # 1 ms is 2.5 kB
        (100 * MBIT, 0.1, 8),  # 12.5 kB
        (100 * MBIT, 0.01, 1),  # 100 us is 1.25 kB
        (1300 * MBIT, 0.1, 43),
        (100 * MBIT, None, 8),
        (5000 * MBIT, None, 43),
        (0, None, 1),
        (1, 1e-6, 1),
    ],
)
def test_bundles_last_a_hundredth_of_the_shortest_step(
    rate: int, step: float | None, segments: int
) -> None:
    assert bundle_segments(rate, step) == segments


def test_tc_commands_name_every_value() -> None:
    root, leaf_class, leaf = tc_commands(End("worker-0", "up"), Shape(100 * MBIT, 625_000), "data")
    assert root == "tc qdisc add dev data root handle 4e57: htb default 10"
    assert leaf_class == (
        "tc class add dev data parent 4e57: classid 4e57:10 htb rate 100000000bit ceil 100000000bit "
        "burst 12500b cburst 12500b quantum 60000"
    )
    assert leaf == "tc qdisc add dev data parent 4e57:10 handle 4e58: bfifo limit 625000b"


@pytest.mark.parametrize(("drop", "word"), [(True, "dropped"), (False, "wait")])
def test_an_outage_is_shown_as_a_comment(drop: bool, word: str) -> None:
    (line,) = tc_commands(End("server", "down"), Shape(0, 1000, drop), "port0")
    assert line.startswith("# server down: outage")
    assert word in line


def test_device_names_fit() -> None:
    assert len(ifb_name(2**31 - 1)) <= 15
