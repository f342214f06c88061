"""Rates beyond what the machine carries are refused, with a dilation that fits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed.errors import MachineError
from testbed.links.tc.parameters import FLOOR_BITS
from testbed.runner import preflight
from testbed.runner.preflight import SHARE, busy_at_once, check_capacity
from testbed.scenario.link_state import LinkDirection

GBIT = 1_000_000_000


def star(rate_bits: int, *nodes: str) -> dict[LinkDirection, int]:
    return {LinkDirection(node, way): rate_bits for node in nodes for way in ("up", "down")}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int, int]]:
    """A machine that moves 1 Gbit/s for every packet in a bundle, and one and a half times that in all."""
    measured: list[tuple[int, int]] = []

    def measure(flows: int, segments: int) -> int:
        measured.append((flows, segments))
        return segments * GBIT * (2 if flows == 1 else 3) // 2

    monkeypatch.setenv("NARROWS_STATE", str(tmp_path))
    monkeypatch.setattr(preflight, "measure_veth", measure)
    monkeypatch.setattr(preflight, "_known", {})
    monkeypatch.setattr(preflight.os, "cpu_count", lambda: 2)
    return measured


def test_slow_links_are_not_measured(asked: list[tuple[int, int]]) -> None:
    check_capacity(star(FLOOR_BITS, "server"), FLOOR_BITS, lambda _: [1])
    check_capacity({}, 0, lambda _: [1])
    assert asked == []


def test_what_fits_is_measured_once(asked: list[tuple[int, int]], tmp_path: Path) -> None:
    for _ in range(2):
        check_capacity(star(6 * GBIT, "server"), 6 * GBIT, lambda _: [10])
    assert asked == [(1, 10), (2, 10)]
    preflight._known.clear()  # as in another process
    check_capacity(star(6 * GBIT, "server"), 6 * GBIT, lambda _: [10])
    assert asked == [(1, 10), (2, 10)]
    (tmp_path / "capacity.json").write_text('{"boot": "another", "10": [1, 1]}')
    preflight._known.clear()
    check_capacity(star(6 * GBIT, "server"), 6 * GBIT, lambda _: [10])
    assert len(asked) == 4


def test_a_link_that_is_too_fast_is_refused(asked: list[tuple[int, int]]) -> None:
    with pytest.raises(MachineError) as refused:
        check_capacity(star(8 * GBIT, "server"), 8 * GBIT, lambda _: [10], dilation=3)
    text = str(refused.value)
    assert "link 'server up'" in text and "8.00 Gbit/s" in text and "10.00 Gbit/s" in text
    assert "dilation: 6" in text and refused.value.exit_code == 3


def test_links_together_may_be_too_much(asked: list[tuple[int, int]]) -> None:
    with pytest.raises(MachineError, match=r"all links together would have 12\.00 Gbit/s"):
        check_capacity(star(6 * GBIT, "server"), 12 * GBIT, lambda _: [10])


def test_the_dilation_named_fits_with_smaller_bundles(asked: list[tuple[int, int]]) -> None:
    def sizes(factor: float) -> list[int]:
        return [max(1, int(10 / factor))]

    links = star(20 * GBIT, "server")
    with pytest.raises(MachineError) as refused:
        check_capacity(links, 20 * GBIT, sizes)
    named = re.search(r"dilation: (\d+)", str(refused.value))
    assert named is not None
    factor = int(named[1])
    slower = {end: rate // factor for end, rate in links.items()}
    check_capacity(slower, 20 * GBIT // factor, lambda _: sizes(factor))
    assert 20 * GBIT / factor <= SHARE * sizes(factor)[0] * GBIT


def test_a_measurement_on_a_busy_machine_refuses_nobody(
    asked: list[tuple[int, int]], tmp_path: Path
) -> None:
    preflight._known[10] = (GBIT, GBIT)
    check_capacity(star(6 * GBIT, "server"), 6 * GBIT, lambda _: [10])
    assert asked == [(1, 10), (2, 10)]


def test_the_preferred_bundle_is_kept_where_it_fits(asked: list[tuple[int, int]]) -> None:
    assert check_capacity(star(2 * GBIT, "server"), 2 * GBIT, lambda _: [3, 6, 12]) == 1
    assert asked == [(1, 3), (2, 3)]


@pytest.mark.parametrize(
    ("rate", "together", "bundle"),
    [(0.8, 0.8, 2), (1.5, 1.5, 4), (2.7, 2.7, 4), (2.9, 2.9, 6), (0.6, 2.2, 4), (0.6, 4.1, 4)],
)
def test_the_shortest_bundle_that_fits_is_needed(
    asked: list[tuple[int, int]], rate: float, together: float, bundle: int
) -> None:
    links, at_once = star(int(rate * GBIT), "server"), int(together * GBIT)
    assert check_capacity(links, at_once, lambda _: [1, 2, 4, 6]) == bundle
    assert max(segments for _, segments in asked) == bundle
    assert check_capacity(links, at_once, lambda _: [1, 2, 4, 6]) == bundle, "a second time"
    preflight._known.clear()  # as in another process
    assert check_capacity(links, at_once, lambda _: [1, 2, 4, 6]) == bundle


def test_a_measurement_on_a_busy_machine_makes_no_bundle_longer(
    asked: list[tuple[int, int]],
) -> None:
    preflight._known[3] = (GBIT, GBIT)
    assert check_capacity(star(2 * GBIT, "server"), 2 * GBIT, lambda _: [3, 6, 12]) == 1


def test_a_refusal_names_the_longest_bundle_tried_and_what_fits(
    asked: list[tuple[int, int]],
) -> None:
    with pytest.raises(MachineError) as refused:
        check_capacity(star(4 * GBIT, "server"), 4 * GBIT, lambda _: [1, 2, 4])
    text = str(refused.value)
    assert "can move 4.00 Gbit/s" in text and "in bundles of 4 packets, the longest" in text
    assert "`dilation: 2`" in text, "in the longest bundle that it may have then"
    assert {segments for _, segments in asked} == {1, 2, 4}


def test_what_training_can_have_under_way_at_once() -> None:
    links = star(GBIT, "server", *(f"worker-{n}" for n in range(4)))
    assert busy_at_once(links, ["server"], []) == 2 * GBIT
    slow = {**links, **star(GBIT // 10, "worker-0", "worker-1", "worker-2", "worker-3")}
    assert busy_at_once(slow, ["server"], []) == 8 * GBIT // 10
    noisy = {**slow, **star(GBIT, "noise")}
    assert busy_at_once(noisy, ["server"], ["noise"]) == 28 * GBIT // 10
