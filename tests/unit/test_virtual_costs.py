"""What compression takes on a virtual clock, where a scenario says so: for everything made sparse, and its elements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from virtual_setup import ALGORITHMS, Stage

from testbed.algorithm import Algorithm
from testbed.compatibility import resolve
from testbed.errors import InputError
from testbed.fabric.sim.network import COSTS, Costs, costs_of
from testbed.scenario.load import dilate, load
from testbed.scenario.model import Sim

torch.set_num_threads(1)
MLP = (8192, 128, 1280, 10)
"""Elements of the parameters of the MLP on digits."""
EACH_S, ELEMENT_S = 2e-3, 1e-6
SAID = Costs(compress_s=EACH_S, element_s=ELEMENT_S)


def compress_s(row: Algorithm, costs: Costs = SAID) -> list[float]:
    """Of every step of a worker."""
    ALGORITHMS[row.name] = row
    stage = Stage(2, row.name)
    stage.network.costs = costs
    return [record["compress_s"] for record in stage.play().of("worker-0", "step")]


def layered(name: str, dense_below: int) -> Algorithm:
    return replace(resolve("topk-0.05+layers"), name=name, dense_below=dense_below)


@pytest.mark.parametrize(
    ("row", "pieces", "elements"),
    [
        (resolve("none"), 0, 0),
        (resolve("topk-0.05"), 1, sum(MLP)),
        (resolve("threshold-0.001"), 1, sum(MLP)),
        (layered("all", 0), 4, sum(MLP)),
        (layered("large", 128), 3, sum(MLP) - 10),
        (layered("largest", 1281), 1, MLP[0]),
    ],
)
def test_a_step_takes_what_its_sparse_parts_take(
    row: Algorithm, pieces: int, elements: int
) -> None:
    assert compress_s(row) == pytest.approx([pieces * EACH_S + elements * ELEMENT_S] * 30)


def test_without_a_word_it_takes_nothing() -> None:
    assert compress_s(resolve("topk-0.05"), Costs()) == pytest.approx([0.0] * 30)


def test_what_a_scenario_says() -> None:
    said = Sim.model_validate({"compress": "100 us", "compress_rate": "20 Gbit/s"})
    found = costs_of(said)
    assert (found.compress_s, found.element_s) == pytest.approx((1e-4, 1.6e-9))
    assert (found.send_s, found.receive_s) == (COSTS.send_s, COSTS.receive_s)
    assert (costs_of(Sim()).compress_s, costs_of(Sim()).element_s) == (0.0, 0.0)


SCENARIO = """
name: costs
nodes: {server: {role: server}, worker: {role: worker, count: 2}}
links: {default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}}
train: {task: digits, model: mlp, pace: 100 ms}
dilation: 10
sim: {compress: 100 us, compress_rate: RATE}
"""


def test_times_are_dilated_as_others(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("RATE", "20 Gbit/s"))
    found = costs_of(dilate(load(tmp_path / "s.yaml").scenario).sim)
    assert (found.compress_s, found.element_s) == pytest.approx((1e-3, 1.6e-8))


def test_a_rate_of_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("RATE", "0 bit/s"))
    with pytest.raises(InputError, match="compress_rate"):
        load(tmp_path / "s.yaml")
