"""Fixed point, and the choice of the redundancy."""

from __future__ import annotations

import re
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from testbed.exchange.coded.exchange import choose_r
from testbed.exchange.coded.round import POISON, mean, narrowed, quantize
from testbed.exchange.coded.schemes import SCHEMES, most_received, most_work, total_load

MOST = 0x7FFFFFFF


def test_ten_is_the_greatest_number_there_is() -> None:
    gradient = np.array([10, -10, 0, -0.0, 5, 1e-9, 3e-9], np.float32)
    into = np.empty(7, np.int32)
    counted = quantize(gradient, into)
    assert (counted.saturated, counted.poisoned) == (0, 0)
    assert into.tolist() == [MOST, -MOST, 0, 0, 1073741824, 0, 1]


def test_what_saturates_and_what_is_no_number_are_counted() -> None:
    gradient = np.zeros(100_000, np.float32)
    gradient[[3, 70_000]], gradient[99_999] = (10.1, 3e38), -11
    gradient[[5, 6, 80_000]] = nan, inf, -inf
    into = np.empty(100_000, np.int32)
    counted = quantize(gradient, into)
    assert (counted.saturated, counted.poisoned) == (3, 3)
    assert into[[3, 70_000, 99_999]].tolist() == [MOST, MOST, -MOST]
    assert into[[5, 6, 80_000]].tolist() == [POISON] * 3
    assert np.count_nonzero(into) == 6


def test_the_error_is_at_most_half_a_step() -> None:
    gradient = np.random.default_rng(1).uniform(-10, 10, 70_001).astype(np.float32)
    into = np.empty(70_001, np.int32)
    quantize(gradient, into)
    error = np.abs(into.astype(np.float64) * 10 / MOST - gradient)
    assert error.max() <= 20 / (2**32 - 2) / 2 * (1 + 1e-6)


def test_the_mean_of_what_was_quantised() -> None:
    gradients = np.random.default_rng(2).normal(0, 1, (9, 40_000)).astype(np.float32)
    into = np.empty((9, 40_000), np.int32)
    for gradient, place in zip(gradients, into, strict=True):
        quantize(gradient, place)
    found = mean(into.sum(0, np.int64), count=36)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, gradients.sum(0, np.float64) / 36, atol=1e-8)


@pytest.mark.parametrize("blocks", range(1, 17))
def test_sums_fit_again_whatever_saturates(blocks: int) -> None:
    bits = (blocks - 1).bit_length()
    sums = np.array([blocks * MOST, -blocks * MOST, 3, -3, 0], np.int64)
    found = narrowed(sums, bits)
    assert found.dtype == np.int32
    expected = [(2 * int(value) + 2**bits) // (2 * 2**bits) for value in sums]
    assert found.tolist() == expected
    assert POISON not in found


def test_much_communication_asks_for_redundancy_and_much_computation_for_none() -> None:
    for way in ("up", "down"):
        assert choose_r("combined", 8, 1.0, 0.1, way).r == 1
        assert choose_r("combined", 8, 0.01, 10.0, way).r == 7
        assert choose_r("literal", 10, 0.1, 0.4, way).r == 1  # up to r = 7 it sends more
    assert choose_r("literal", 3, t_calc_s=0.1, t_comm_s=1.0).r == 2


def test_the_best_of_the_table_is_chosen_and_told() -> None:
    chosen = choose_r("replicated", 10, 0.1, 1.0, "up")
    assert [one.r for one in chosen.table] == list(range(1, 10))
    assert chosen.r == min(chosen.table, key=lambda one: one.step_s).r == 4
    assert chosen.table[4].calc_s == pytest.approx(0.5)
    assert chosen.table[4].comm_s == pytest.approx(0.2)
    assert "shortest with r = 4 (r = 1: 0.1 + 1 = 1.1 s; r = 2: 0.2 + 0.5 = 0.7 s" in chosen.why


def test_down_links_have_what_all_others_send() -> None:
    chosen = choose_r("replicated", 10, t_calc_s=0.1, t_comm_s=0.9)
    assert [round(one.comm_s, 6) for one in chosen.table[:5]] == [0.9, 0.4, 0.3, 0.2, 0.1]
    combined = choose_r("combined", 12, t_calc_s=0.1, t_comm_s=0.6)
    assert [round(combined.table[r - 1].comm_s, 6) for r in (1, 2, 3, 5, 11)] == [
        0.6, 0.4, 0.3, 0.2, 0.1,
    ]  # fmt: skip


def test_the_page_has_the_right_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "coded.md").read_text()
    rows = re.findall(r"^\| (\d+), (\d+) \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) >= 5
    for nodes, r, cells in rows:
        assert cells == " | ".join(cell(name, int(nodes), int(r)) for name in SCHEMES)


def cell(name: str, nodes: int, r: int) -> str:
    sent = float(total_load(name, nodes, r) / nodes)
    received, work = most_received(name, nodes, r), most_work(name, nodes, r)
    return f"{sent:.3g}, {float(received):.3g}, {float(work):.3g}"
