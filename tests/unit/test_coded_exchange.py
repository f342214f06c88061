"""Coded exchange in whole runs: real workers on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from virtual_links import LinkModel, network
from virtual_run import carried_out

from testbed.compatibility import resolve
from testbed.errors import InputError, NodeLost
from testbed.exchange.base import Membership
from testbed.exchange.coded.exchange import CodedExchange, check_run, work
from testbed.exchange.coded.round import header_bytes
from testbed.exchange.coded.schemes import CodedGroups, scheme
from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.node import VirtualNode
from testbed.records.run_directory import read_events
from testbed.runner.comparison import Comparison
from testbed.runner.experiment import prepare
from testbed.scenario.model import Derived
from testbed.transport.frame import HEADER_BYTES

SCENARIO = """
name: coded
nodes: {worker: {role: worker, count: 5}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, batch: 24, optimizer: {name: sgd, lr: 0.1}, pace: 100 ms,
  stop: {steps: 6}, evaluate_every: 6}
algorithms: [cssgd-r2, replicated-r2, grouped-r2, combined-r2, combined-auto, cssgd-r1,
  cssgd-columns-r2]
seeds: [1]
"""
SIZE = 9610
"""Parameters of the model."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory for each algorithm; all of them sound."""
    done = carried_out(tmp_path_factory.mktemp("coded"), SCENARIO)
    assert {run["verdict"] for run in done.runs} == {"valid"}, _reasons(done)
    return {str(run["algorithm"]): Path(run["dir"]) for run in done.runs}


def test_all_schemes_learn_alike_and_have_equal_replicas(runs: dict[str, Path]) -> None:
    losses = {}
    for name, directory in runs.items():
        (evaluation,) = (e for e in _events(directory, "evaluation") if e["final"])
        losses[name] = evaluation["loss"]
    assert max(losses.values()) - min(losses.values()) < 2e-3


def test_columns_are_summed_to_the_same_bits(runs: dict[str, Path]) -> None:
    """Sums of whole numbers: whatever the parts, replicas are those of the flat vector's."""
    losses = [
        _events(runs[name], "evaluation")[-1]["loss"] for name in ("cssgd-r2", "cssgd-columns-r2")
    ]
    assert losses[0] == losses[1]
    sent = [
        sum(e["bytes_sent"] for e in _events(runs[name], "coded"))
        for name in ("cssgd-r2", "cssgd-columns-r2")
    ]
    assert sent[1] == sent[0], "all layers have even numbers of columns"


def test_shares_follow_the_speed_of_workers(tmp_path: Path) -> None:
    """From the fourth step on the slow worker computes less, and all take about as long."""
    text = SCENARIO.replace("100 ms", "100 ms, slow: {worker-4: 2}")
    text = text.replace(
        "algorithms: [",
        "algorithms: [{name: shared, from: cssgd-r2, exchange_options: {shares: speed}}, ",
    )
    done = carried_out(tmp_path, text, algorithms=["shared"])
    assert [run["verdict"] for run in done.runs] == ["valid"], _reasons(done)
    directory = Path(done.runs[0]["dir"])
    decided = _events(directory, "redundancy")
    assert {(e["step"], e["r"]) for e in decided} == {(4, 2)}
    assert len({e["why"] for e in decided}) == 1
    assert decided[0]["why"].endswith("1, 1, 1, 1, 0.5")
    times = {
        step: [e["compute_s"] for e in _events(directory, "step") if e["step"] == step]
        for step in (3, 4)
    }
    assert max(times[4]) < 0.8 * max(times[3])
    assert min(times[4]) > min(times[3])


@pytest.mark.parametrize("changed", [{"split": "columns"}, {"shares": "speed"}])
def test_only_the_published_scheme_has_its_options(changed: dict[str, str]) -> None:
    check_run({"scheme": "literal", "r": 2, **changed}, 4, 24)
    with pytest.raises(InputError, match="Take scheme 'literal'"):
        check_run({"scheme": "combined", "r": 2, **changed}, 4, 24)


def test_bytes_are_those_of_the_scheme(runs: dict[str, Path]) -> None:
    for name, entry in (
        ("cssgd-r2", "literal"), ("replicated-r2", "replicated"), ("grouped-r2", "grouped"),
        ("combined-r2", "combined"),
    ):  # fmt: skip
        plan = scheme(entry, 5, 2)
        steps = {(e["node"], e["step"]): e for e in _events(runs[name], "coded")}
        assert len(steps) == 5 * 6
        for rank, sent in enumerate(plan.packets):
            expected = sum(
                HEADER_BYTES + header_bytes(len(packet.pieces)) + 4 * packet.elements(SIZE)
                for packet in sent
            )
            for step in range(1, 7):
                seen = steps[f"worker-{rank}", step]
                assert (seen["bytes_sent"], seen["packets"]) == (expected, len(sent))
        received = sum(sum(e["received"].values()) for e in steps.values())
        assert received == sum(step["bytes_down"] for step in _events(runs[name], "step"))


def test_computation_is_paced_by_the_samples_computed(runs: dict[str, Path]) -> None:
    plan = scheme("literal", 5, 2)
    for event in _events(runs["cssgd-r2"], "step"):
        rank = int(event["node"].rpartition("-")[2])
        assert event["compute_s"] == pytest.approx(0.1 * plan.work(rank, 120) / 24, abs=1e-6)


def test_auto_measures_without_redundancy_and_all_decide_alike(runs: dict[str, Path]) -> None:
    decided = _events(runs["combined-auto"], "redundancy")
    assert len(decided) == 5
    assert len({(e["step"], e["r"], e["why"]) for e in decided}) == 1
    assert decided[0]["step"] == 4
    used = {step: {e["r"] for e in _events(runs["combined-auto"], "coded") if e["step"] == step}
            for step in range(1, 7)}  # fmt: skip
    assert used == {1: {1}, 2: {1}, 3: {1}, **{step: {decided[0]["r"]} for step in (4, 5, 6)}}


def test_a_slow_network_asks_for_redundancy(tmp_path: Path) -> None:
    slow = SCENARIO.replace("20 Mbit/s", "500 kbit/s").replace("100 ms", "10 ms")
    done = carried_out(tmp_path, slow, algorithms=["combined-auto"])
    assert [run["verdict"] for run in done.runs] == ["valid"], _reasons(done)
    directory = Path(done.runs[0]["dir"])
    (r,) = {e["r"] for e in _events(directory, "redundancy")}
    assert r == 4
    steps = {e["step"]: e for e in _events(directory, "step")}
    assert steps[6]["end_s"] - steps[6]["start_s"] < steps[3]["end_s"] - steps[3]["start_s"]


def test_where_one_worker_computes_for_long_redundancy_would_cost_more(tmp_path: Path) -> None:
    """On the same slow network: all wait for the slowest, whatever the others' computation takes."""
    slow = SCENARIO.replace("20 Mbit/s", "500 kbit/s")
    slow = slow.replace("100 ms", "10 ms, slow: {worker-4: 500}")
    done = carried_out(tmp_path, slow, algorithms=["combined-auto"])
    decided = _events(Path(done.runs[0]["dir"]), "redundancy")
    assert [event["r"] for event in decided] == [1] * 5


class Bench:
    """Workers without training."""

    def __init__(self, many: int, **options: Any) -> None:
        self.clock = VirtualClock()
        names = {rank + 1: f"worker-{rank}" for rank in range(many)}
        net = network(self.clock, dict.fromkeys(names.values(), LinkModel(10e6, 10e6, 0.001)))
        self.nodes = [VirtualNode(VirtualEndpoint(net, n, name), 1) for n, name in names.items()]
        self.sides = [
            CodedExchange(
                node,
                Membership(
                    n, (0,), list(names), names, timeout_s=5.0, options=options, last_step=3
                ),
            )
            for n, node in zip(names, self.nodes, strict=True)
        ]

    def step(self, rank: int, step: int, value: int = 1, size: int = 9) -> Any:
        """Submit a step; a block's elements are (its first sample + 1) · value, in fixed point."""
        side = self.sides[rank]
        starts = [place.start for place in side.samples(10)]
        rows = np.array([[(start + 1) * value] * size for start in starts], np.int32)
        return side.submit(step, 0, rows.data.cast("B"))

    def run(self, *bodies: Callable[[], Any]) -> list[Any]:
        return list(self.clock.run({str(n): body for n, body in enumerate(bodies)}).values())


def test_the_silent_one_is_named() -> None:
    bench = Bench(3, scheme="literal", r=2)

    def takes_part(rank: int) -> Callable[[], None]:
        def body() -> None:
            bench.sides[rank].connect()
            if rank != 2:
                bench.step(rank, 1).wait()

        return body

    with pytest.raises(NodeLost, match="'worker-2' was lost at step 1, while receiving"):
        bench.run(*map(takes_part, range(3)))


def test_steps_follow_one_another_though_some_are_ahead() -> None:
    bench = Bench(5, scheme="replicated", r=2)

    def takes_part(rank: int) -> Callable[[], list[float]]:
        def body() -> list[float]:
            side, node, found = bench.sides[rank], bench.nodes[rank], []
            side.connect()
            for step in (1, 2, 3):
                node.sleep_until(node.now() + 0.1 * rank)
                mean = np.frombuffer(bench.step(rank, step, value=step).wait().payload, np.float32)
                found.append(float(mean[0]))
            side.close()
            return found

        return body

    results = bench.run(*map(takes_part, range(5)))
    of_a_block = 10 / 0x7FFFFFFF / 3
    total = sum(start + 1 for start in (0, 3, 6))
    expected = [np.float32(total * step * of_a_block) for step in (1, 2, 3)]
    assert results == [pytest.approx(expected)] * 5
    assert {side.last_step for side in bench.sides} == {3}


def test_switches_and_nodes_bear_so_many_groups_and_no_more() -> None:
    check_run({"scheme": "literal", "r": 2}, 16, 24)
    check_run({"scheme": "literal", "r": "auto"}, 10, 32)
    with pytest.raises(InputError, match="needs 4368 multicast groups"):
        check_run({"scheme": "literal", "r": 4}, 16, 200)


def test_travel_is_known_after_waiting() -> None:
    bench = Bench(2, scheme="literal", r=1)

    def takes_part(rank: int) -> Callable[[], Any]:
        def body() -> Any:
            bench.sides[rank].connect()
            ticket = bench.step(rank, 1, size=1000)
            with pytest.raises(RuntimeError, match="after wait"):
                _ = ticket.travel
            ticket.wait()
            return ticket.travel

        return body

    for travel in bench.run(*map(takes_part, range(2))):
        assert travel.bytes_up == travel.bytes_down == HEADER_BYTES + header_bytes(1) + 4000
        assert (
            travel.start_s <= travel.sent_s <= travel.first_s <= travel.arrived_s <= travel.last_s
        )


@pytest.mark.parametrize(
    ("change", "algorithm", "says"),
    [
        (("", ""), "cssgd-r5", r"'cssgd-r5': redundancy r = 5 with 5 workers.*r is at most 4"),
        (("count: 5", "count: 17"), "combined-r2", "17 workers. It takes 2 to 16"),
        (("batch: 24", "batch: 1"), "cssgd-r2", r"5 samples, into 10 blocks\. Use a batch of at least 2"),
        (("count: 5", "count: 15"), "cssgd-r5", "15 workers, 360 samples, into 3003 blocks"),
        (("pace: 100 ms", "pace: 100 ms, gradients: none"), "grouped-r2", "`train.gradients` is none"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, change: tuple[str, str], algorithm: str, says: str
) -> None:
    path = tmp_path / "wrong.yaml"
    before, _, after = SCENARIO.replace(*change).partition("algorithms: [")
    path.write_text(f"{before}algorithms: [{algorithm}]{after[after.index(']') + 1 :]}")
    with pytest.raises(InputError, match=says):
        prepare(path)


def test_names_and_options() -> None:
    assert resolve("grouped-r3").exchange_options == {"scheme": "grouped", "r": 3}
    assert resolve("cssgd-auto").exchange_options == {"scheme": "literal", "r": "auto"}
    entry = Derived.model_validate(
        {"name": "mine", "from": "cssgd-r2", "exchange_options": {"r": 4}}
    )
    assert resolve(entry).exchange_options == {"scheme": "literal", "r": 4}
    for wrong, says in (
        ("combined-r16", "'16' is no r"),
        ({"name": "x", "from": "cssgd-r2", "exchange_options": {"q": 4}}, "unknown option 'q'"),
        ({"name": "x", "from": "topk-0.1", "exchange": "coded"}, "carries gradients as they are"),
        ({"name": "x", "from": "cssgd-r2", "values": "fp16"}, "carries gradients as they are"),
    ):
        with pytest.raises(InputError, match=says):
            resolve(wrong if isinstance(wrong, str) else Derived.model_validate(wrong))


def test_groups_are_few() -> None:
    peers = range(10, 20)
    many = {
        name: CodedGroups([scheme(name, 10, r)], peers).sets
        for name, r in (("literal", 3), ("replicated", 5), ("grouped", 4), ("combined", 4))
    }
    assert {name: len(sets) for name, sets in many.items()} == {
        "literal": 210, "replicated": 10, "grouped": 12, "combined": 3,
    }  # fmt: skip
    assert many["replicated"][0] == frozenset([10, *range(15, 20)])
    assert frozenset(peers) in many["combined"]
    for name, r in (("literal", 3), ("grouped", 4), ("combined", 4)):
        plan = scheme(name, 10, r)
        groups = CodedGroups([plan], peers)
        for packet in (packet for sent in plan.packets for packet in sent):
            number = groups.of(packet)
            assert number is not None
            members = groups.sets[number] - {peers[packet.sender]}
            assert members == {peers[rank] for rank in packet.destinations}


def test_waiting_allows_for_the_work() -> None:
    assert work({"scheme": "literal", "r": 3}, 10) == 3
    assert work({"scheme": "replicated", "r": 3}, 10) == 2.5
    assert work({"scheme": "combined", "r": "auto"}, 10) == 9


def _events(directory: Path, kind: str) -> list[dict[str, Any]]:
    return read_events(directory).get(kind, [])


def _reasons(done: Comparison) -> list[Any]:
    return [run["reasons"] for run in done.runs]


def test_communication_is_counted_from_when_the_last_begins_to_send(tmp_path: Path) -> None:
    """A worker that computes longer than others does not make their communication longer."""
    slow = "pace: 100 ms, slow: {worker-4: 5}"
    text = SCENARIO.replace("pace: 100 ms", slow)
    (entry,) = carried_out(tmp_path, text, algorithms=["cssgd-r2"]).runs
    events = read_events(Path(entry["dir"]))
    computed = {step["node"]: step["compute_s"] for step in events["step"]}
    assert computed["worker-4"] - computed["worker-0"] == pytest.approx(0.8, abs=0.01)
    assert events["coded"] and all(0.0 < coded["t_comm_s"] < 0.2 for coded in events["coded"])
