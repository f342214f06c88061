"""Ring all-reduce in virtual time: its sums, its bytes, its time; and whole runs with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from virtual_links import LinkModel, network
from virtual_run import carried_out

from testbed.compatibility import resolve
from testbed.errors import InputError, NodeLost, WireError
from testbed.exchange.base import Membership, TransferTiming
from testbed.exchange.ring_all_reduce import RingExchange
from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.node import VirtualNode, play
from testbed.records.run_directory import read_events
from testbed.runner.experiment import prepare
from testbed.scenario.model import Derived

FRAME = 40
STEPS = 3
RATE = 20e6


class Adder:
    """A worker without a model: has random vectors averaged, step after step."""

    def __init__(self, node: VirtualNode, own: int, workers: int, size: int, values: str) -> None:
        names = {peer: f"worker-{peer}" for peer in range(workers)}
        self.peers = Membership(
            own, (), range(workers), names, 10.0, options={"values": values}, last_step=STEPS
        )
        self._exchange, self._size = RingExchange(node, self.peers), size
        self.means: list[NDArray[np.float32]] = []
        self.travels: list[TransferTiming] = []

    def given(self, step: int) -> NDArray[np.float32]:
        drawn = np.random.default_rng([self.peers.own, step]).standard_normal(self._size)
        return drawn.astype(np.float32)

    def prepare(self) -> None:
        self._exchange.connect()

    def run(self) -> dict[str, Any]:
        for step in range(1, STEPS + 1):
            vector = self.given(step)
            before = vector.copy()
            ticket = self._exchange.submit(step, 0, vector.data.cast("B"))
            update = ticket.wait()
            assert np.array_equal(vector, before) and update.kind == "gradient"
            self.means.append(np.frombuffer(update.payload, np.float32).copy())
            self.travels.append(ticket.travel)
        self._exchange.close()
        return {"sent": self._exchange.bytes_sent, "received": self._exchange.bytes_received}


def added_up(
    workers: int, size: int, values: str = "fp32", rates: list[float] | None = None
) -> tuple[list[Adder], dict[str, dict[str, Any]]]:
    names = [f"worker-{rank}" for rank in range(workers)]
    each = rates or [RATE] * workers
    links = {name: LinkModel(rate, rate) for name, rate in zip(names, each, strict=True)}
    made = network(VirtualClock(), links)
    adders = {}
    for rank, name in enumerate(names):
        node = VirtualNode(VirtualEndpoint(made, rank, name), seed=1)
        adders[name] = Adder(node, rank, workers, size, values)
    return list(adders.values()), dict(play(made, adders))


@pytest.mark.parametrize(("workers", "size"), [(1, 7), (2, 10), (3, 1000), (5, 3), (8, 1001)])
@pytest.mark.parametrize(("values", "tolerance"), [("fp32", 1e-6), ("bf16", 0.02)])
def test_everybody_has_the_same_bits_of_the_mean(
    workers: int, size: int, values: str, tolerance: float
) -> None:
    adders, _ = added_up(workers, size, values)
    for step in range(STEPS):
        expected = np.mean([a.given(step + 1).astype(np.float64) for a in adders], axis=0)
        assert {a.means[step].tobytes() for a in adders} == {adders[0].means[step].tobytes()}
        np.testing.assert_allclose(adders[0].means[step], expected, atol=tolerance)


def test_bf16_means_are_bfloat16_and_not_those_of_fp32() -> None:
    exact, rounded = added_up(3, 999)[0][0].means[0], added_up(3, 999, "bf16")[0][0].means[0]
    assert not np.any(rounded.view(np.uint32) & 0xFFFF)
    assert not np.array_equal(exact, rounded)


@pytest.mark.parametrize("values", ["fp32", "bf16"])
def test_sums_do_not_depend_on_timing(values: str) -> None:
    fast, _ = added_up(4, 500, values)
    slow, _ = added_up(4, 500, values, rates=[1e6, 9e6, 3e6, 50e6])
    for one, other in zip(fast, slow, strict=True):
        assert [m.tobytes() for m in one.means] == [m.tobytes() for m in other.means]


@pytest.mark.parametrize(("values", "width"), [("fp32", 4), ("bf16", 2)])
@pytest.mark.parametrize("workers", [2, 4])
def test_bytes_are_2_n_minus_1_segments_with_their_frames(
    workers: int, values: str, width: int
) -> None:
    size = 1200
    adders, totals = added_up(workers, size, values)
    each = 2 * (workers - 1) * (width * size // workers + FRAME)
    for adder in adders:
        assert {(t.bytes_up, t.bytes_down) for t in adder.travels} == {(each, each)}
    goodbyes = (workers - 1) * FRAME
    for rank, total in enumerate(totals.values()):
        assert total["sent"] == STEPS * each + goodbyes + rank * FRAME
        assert total["received"] == STEPS * each + goodbyes + (workers - 1 - rank) * FRAME


def test_time_is_that_of_two_gradients_less_an_nth() -> None:
    workers, size = 4, 500_000
    adders, _ = added_up(workers, size)
    frames = 2 * (workers - 1) * (4 * size / workers + FRAME)
    ideal = 8 * frames * (1 + 66 / 1448) / RATE
    for travel in adders[1].travels:
        assert ideal <= travel.last_s - travel.start_s < 1.01 * ideal


def test_the_slowest_link_sets_the_pace() -> None:
    adders, _ = added_up(3, 30_000, rates=[RATE, RATE / 10, RATE])
    even, _ = added_up(3, 30_000)
    slow, fast = (max(a.travels[0].last_s for a in each) for each in (adders, even))
    assert slow == pytest.approx(10 * fast, rel=0.05)


def test_a_gradient_of_another_size_is_refused() -> None:
    names = ["worker-0", "worker-1"]
    made = network(VirtualClock(), names)
    adders = {
        name: Adder(VirtualNode(VirtualEndpoint(made, rank, name), 1), rank, 2, 10 + rank, "fp32")
        for rank, name in enumerate(names)
    }
    with pytest.raises(WireError, match=r"segment of worker-\d, step 1, hop [01]"):
        play(made, adders)


SCENARIO = """
name: ring
nodes: {worker: {role: worker, count: 3}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, batch: 32, optimizer: {name: sgd, lr: 0.1}, pace: 100 ms,
  stop: {steps: 40}, evaluate_every: 20}
algorithms: [ssgd, ring, ring-bf16]
seeds: [1]
peer_timeout: 5 s
"""


def test_training_is_as_with_everybodys_gradient(tmp_path: Path) -> None:
    runs = {run["algorithm"]: run for run in carried_out(tmp_path, SCENARIO).runs}
    assert {run["verdict"] for run in runs.values()} == {"valid"}
    losses = {
        name: [step["loss"] for step in read_events(Path(run["dir"]))["step"]]
        for name, run in runs.items()
    }
    assert losses["ring"] == pytest.approx(losses["ssgd"], abs=1e-4)
    assert losses["ring-bf16"] == pytest.approx(losses["ssgd"], abs=0.05)
    assert losses["ring-bf16"] != losses["ring"]
    assert runs["ring"]["accuracy"] == pytest.approx(runs["ssgd"]["accuracy"], abs=0.01)
    assert runs["ring"]["bytes_up"] == pytest.approx(2 / 3 * runs["ssgd"]["bytes_up"], rel=0.01)


def test_many_workers_share_a_replica(tmp_path: Path) -> None:
    text = SCENARIO.replace("count: 3", "count: 40").replace("steps: 40", "steps: 3")
    (run,) = carried_out(tmp_path, text, algorithms=["ring-bf16"]).runs
    assert run["verdict"] == "valid"


def test_bytes_are_the_same_without_gradients(tmp_path: Path) -> None:
    few = SCENARIO.replace("steps: 40", "steps: 3")
    empty = few.replace("task:", "gradients: none, task:")
    bytes_up = [
        run["bytes_up"]
        for folder, text in (("real", few), ("none", empty))
        for run in carried_out(tmp_path / folder, text, algorithms=["ring"]).runs
    ]
    assert bytes_up[0] == bytes_up[1] > 0


def test_a_killed_worker_is_named(tmp_path: Path) -> None:
    text = SCENARIO + "events: [{kind: kill, nodes: [worker-1], at: 700 ms}]\n"
    with pytest.raises(NodeLost, match=r"'worker-1' was lost at step \d"):
        carried_out(tmp_path, text, algorithms=["ring"])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"from": "topk-0.1"}, "'ring' carries gradients as they are, and selector is 'topk'"),
        ({"from": "none", "values": "qsgd"}, "and values is 'qsgd'"),
        ({"from": "ring", "exchange_options": {"values": "int8"}}, "values: .*'int8'"),
        ({"from": "ring", "exchange_options": {"chunks": 2}}, "unknown option 'chunks'"),
    ],
)
def test_what_does_not_go_round(changes: dict[str, Any], sentence: str) -> None:
    entry = Derived.model_validate({"name": "x", "exchange": "ring", **changes})
    with pytest.raises(InputError, match=sentence):
        resolve(entry)


def test_a_ring_in_a_scenario_may_be_derived(tmp_path: Path) -> None:
    path = tmp_path / "derived.yaml"
    entry = "{name: narrow, from: none, exchange: ring, exchange_options: {values: bf16}}"
    path.write_text(SCENARIO.replace("[ssgd, ring, ring-bf16]", f"[{entry}]"))
    (row,) = prepare(path).algorithms
    assert row.exchange_options == {"values": "bf16"}
