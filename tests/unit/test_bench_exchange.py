"""The arithmetic of the exchange benchmark, and one of its rounds over loopback."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from loopback import own_address, own_place

from testbed.bench.exchange.cases import (
    BenchLink,
    BenchPart,
    BenchTask,
    ExchangeCell,
    ExchangeSample,
    add,
    bypass,
    check_bytes,
    entry,
    gradient,
    row,
)
from testbed.bench.exchange.run import ExchangePlan, run
from testbed.errors import InputError
from testbed.links.agent.protocol import dump, read
from testbed.scenario.link_state import FRAME_BYTES, SEGMENT_BYTES

SLOW = BenchLink.parse("100 Mbit/s")


def task(own: int, nodes: int, name: str, port: int = 0, size: int = 4000) -> BenchTask:
    addresses = {number: own_address(number + 2) for number in range(nodes + 1)}
    return BenchTask(name, own, nodes, size, addresses, port, "lo", 1, 7, 10.0)


def test_a_round_through_a_server_takes_its_link_twice() -> None:
    cell = ExchangeCell("ps-loop", 4, 1_000_000, SLOW)
    assert cell.least_s == pytest.approx(2 * 4e6 * 8 / 1e8 * FRAME_BYTES / SEGMENT_BYTES, rel=1e-3)
    assert cell.moved == 2 * 4 * 1_000_000
    assert ExchangeCell("ps-loop", 4, 1_000_000, BenchLink.parse("unshaped")).least_s is None


def test_links_are_rates() -> None:
    assert BenchLink.parse("1.3 Gbit/s").rate_bits == 1_300_000_000
    for wrong in ("fast", "100", "0 Mbit/s"):
        with pytest.raises(InputError, match="--link"):
            BenchLink.parse(wrong)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InputError, match="There are ps-threads"):
        entry("carrier-pigeon")
    for wrong in (0, 1001):
        with pytest.raises(InputError, match="float32"):
            check_bytes([1000, wrong])


def test_bytes_that_went_elsewhere_are_missed() -> None:
    cell = ExchangeCell("rpc", 2, 1000, SLOW)
    honest = {0: (20_500, 20_400), 1: (10_300, 10_200), 2: (10_300, 10_100)}
    assert bypass(cell, 10, honest) == pytest.approx(1.01)
    assert bypass(cell, 10, {**honest, 1: (10_300, 400)}) == pytest.approx(0.04)


def test_exchanges_in_which_a_node_would_be_idle_are_left_out(tmp_path: Path) -> None:
    plan = ExchangePlan(["ring", "peers", "ps-loop", "replicated-r2"], [SLOW], [1], [4000], 30.0)
    for nodes, kept in ((1, ["ps-loop"]), (2, ["ring", "peers", "ps-loop"])):
        assert [cell.exchange for cell in plan.cells(SLOW, nodes, 4000)] == kept
    _, result = run(replace(plan, exchanges=["ring", "peers"]), tmp_path, lambda _: None)
    (absent,) = result.absent
    assert absent.startswith("peers, ring with 1 nodes") and "it needs more nodes" in absent


def test_a_row_is_made_of_medians() -> None:
    cell = ExchangeCell("gloo", 4, 1_000_000, SLOW)
    assert cell.least_s is not None
    samples = [ExchangeSample([cell.least_s * k] * 10, 1.0, 1.1) for k in (1, 2, 4)]
    made = row(cell, samples, ["it broke"])
    assert made["rounds_per_s"] == pytest.approx(0.5 / cell.least_s)
    assert made["line_rate_fraction"] == pytest.approx(0.5)
    assert made["p99_ms"] == pytest.approx(2e3 * cell.least_s)
    assert (made["failure"], made["failures"]) == ("it broke", 1)
    nothing = row(cell, [], [])
    assert nothing["rounds_per_s"] is None


def test_a_task_survives_its_journey() -> None:
    given = task(1, 3, "ps-loop")
    assert read(BenchTask, json.loads(dump(given))) == given


def test_gradients_are_added_in_order_of_rank() -> None:
    vectors = [gradient(task(own, 3, "ps-loop")) for own in (1, 2, 3)]
    total = np.empty_like(vectors[0])
    assert set(add(vectors, total)) == {6.0}


@pytest.mark.parametrize("name", ["ps-threads", "ps-loop", "peers", "ring"])
def test_three_nodes_make_rounds(name: str) -> None:
    _, port = own_place()
    parts: dict[int, BenchPart] = {}

    def make(own: int) -> None:
        parts[own] = entry(name).part(task(own, 3, name, port))

    def work(own: int) -> None:
        for step in (1, 2, 3):
            parts[own].round(step)
        done.append(own)

    done, numbers = list[int](), ExchangeCell(name, 3, 4000, SLOW).numbers
    for activity in (make, work, lambda own: parts[own].close()):
        threads = [threading.Thread(target=activity, args=(own,), daemon=True) for own in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20.0)
        assert not any(thread.is_alive() for thread in threads)
    assert set(done) == set(numbers)


def test_every_row_says_what_passes_its_busiest_link() -> None:
    for name, least in (("ps-loop", 8.0), ("peers", 3.0), ("ring", 1.5), ("allreduce", 1.5)):
        cell = ExchangeCell(name, 4, 1_000_000, SLOW)
        assert cell.least_s == pytest.approx(
            least * 8e6 / 1e8 * FRAME_BYTES / SEGMENT_BYTES, rel=0.01
        )
        ways = [sum(cell.entry.carried(own, 4, 1_000_000)) for own in cell.numbers]
        assert min(ways) > 0
