"""Real worker and server on a virtual clock, by what they compress with: same bytes, same replicas, every step told."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest
import torch
from not_empty import not_empty
from virtual_setup import ALGORITHMS, Played, Stage

from testbed.algorithm import Algorithm
from testbed.compatibility import resolve
from testbed.compress.payload import LAYERS_MAGIC, MAGIC
from testbed.compress.values.floats import Fp32
from testbed.node import Message
from testbed.records.events import FitRecord
from testbed.scenario.model import Optimizer

torch.set_num_threads(1)
ROWS = (
    "qsgd-4bit", "terngrad", "onebit-double", "bf16", "powersgd-r2", "randk-0.1", "dgc-0.05",
    "topk-0.05+layers", "laplace-0.05+int8", "gtopk-0.05",
)  # fmt: skip
STOCHASTIC = ("qsgd-4bit", "terngrad", "randk-0.1")
FRAME_BYTES, HEADER_BYTES = 40, 32


def stage(name: str, workers: int = 2, **changes: Any) -> Stage:
    """A stage for any algorithm's name; memory ``dgc`` takes the place of the optimizer's momentum."""
    row = ALGORITHMS.setdefault(name, resolve(name))
    if row.memory == "dgc":
        changes = {"optimizer": Optimizer(lr=0.1), **changes}
    return Stage(workers, name, **changes)


@pytest.fixture(scope="module")
def played() -> dict[str, Played]:
    """One run of each; made when it is first asked for."""
    return {}


@pytest.fixture(params=ROWS)
def run(request: pytest.FixtureRequest, played: dict[str, Played]) -> Played:
    if request.param not in played:
        played[request.param] = stage(request.param).play()
    return played[request.param]


def test_it_learns_and_every_replica_is_the_same(run: Played) -> None:
    """The server's own replica too: it decodes the very bytes that it sends."""
    losses = [record["loss"] for record in run.of("worker-0", "step")]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert len({summary["parameters"] for summary in run.summaries.values()}) == 1


def test_bytes_agree_on_both_sides(run: Played) -> None:
    server = run.summaries["server"]
    workers = [run.summaries[name] for name in ("worker-0", "worker-1")]
    assert server["bytes_received"] == sum(worker["bytes_sent"] for worker in workers)
    assert server["bytes_down"] == sum(worker["bytes_down"] for worker in workers)


def test_records_are_plain_json(run: Played) -> None:
    for record in not_empty(run.of("worker-0", "step")):
        assert json.loads(json.dumps(record)) == record


@pytest.mark.parametrize("name", ROWS)
def test_the_same_seed_sends_the_same_payloads(name: str, played: dict[str, Played]) -> None:
    first = played.get(name) or stage(name).play()
    second = stage(name).play()
    for worker in ("worker-0", "worker-1"):
        crcs = [[r["payload_crc"] for r in p.of(worker, "step")] for p in (first, second)]
        assert crcs[0] == crcs[1]
        assert len(set(crcs[0])) == 30
    assert first.records == second.records


@pytest.mark.parametrize("name", STOCHASTIC)
def test_another_seed_sends_others(name: str) -> None:
    runs = [stage(name, 1, seed=seed, stop={"steps": 4}).play() for seed in (1, 2)]
    crcs = [{record["payload_crc"] for record in run.of("worker-0", "step")} for run in runs]
    assert not crcs[0] & crcs[1]


def test_a_selection_is_told_with_every_step(played: dict[str, Played]) -> None:
    run = played.get("laplace-0.05+int8") or stage("laplace-0.05+int8").play()
    for record in not_empty(run.of("worker-1", "step")):
        how = record["selection"]
        assert set(how) == {"passes", "threshold", "ties"}
        assert how["passes"] >= 1.0
        assert how["threshold"] > 0.0
        asked = round(record["density"] * record["size"])
        assert record["sent_count"] - how["ties"] <= 1.06 * asked
        assert record["sent_count"] >= 0.94 * asked


def test_what_looks_at_nothing_took_no_pass() -> None:
    played = stage("none", 1, stop={"steps": 2}).play()
    for record in not_empty(played.of("worker-0", "step")):
        assert record["selection"]["passes"] == 0.0


class Listener:
    """Keeps the beginning of every body that a node sends."""

    def __init__(self, setting: Stage, node: str) -> None:
        self.begun: list[bytes] = []
        self.lengths: list[int] = []
        self._send = setting.endpoint(node).send
        setting.endpoint(node).send = self.send  # type: ignore[assignment,method-assign]

    def send(self, destinations: list[int], message: Message) -> int:
        body = bytes(message.body)
        if body:
            self.begun.append(body[:4])
            self.lengths.append(len(body))
        return self._send(destinations, message)


def test_parameters_by_themselves_go_up_in_one_message_and_come_back_in_one_payload() -> None:
    setting = stage("topk-0.05+layers", stop={"steps": 3})
    up, down = Listener(setting, "worker-0"), Listener(setting, "server")
    setting.play()
    assert up.begun == [LAYERS_MAGIC] * 3
    assert down.begun == [MAGIC] * 3


def test_the_mean_goes_down_as_the_row_says() -> None:
    lengths = {}
    for name in ("none", "bf16", "gtopk-0.05", "onebit-double"):
        setting = stage(name, stop={"steps": 2})
        listener = Listener(setting, "server")
        played = setting.play()
        size = played.of("worker-0", "step")[0]["size"]
        lengths[name] = listener.lengths[0]
        bytes_down = played.of("worker-0", "step")[0]["bytes_down"]
        assert bytes_down == FRAME_BYTES + listener.lengths[0]
    assert lengths["none"] == HEADER_BYTES + 4 * size
    assert lengths["bf16"] == HEADER_BYTES + 2 * size
    assert size / 20 * 4 < lengths["gtopk-0.05"] < size / 20 * 5.2 + HEADER_BYTES
    assert size / 8 < lengths["onebit-double"] < size / 8 + HEADER_BYTES + 64 + 16 * 800


def test_a_memory_on_the_servers_side_changes_what_comes_down() -> None:
    rows = {
        "signs": Algorithm("signs", down="sign"),
        "signs-remembered": Algorithm("signs-remembered", down="sign", down_memory="feedback"),
    }
    ALGORITHMS.update(rows)
    one, other = (Stage(2, name).play() for name in rows)
    losses = [played.of("worker-0", "step")[-1]["loss"] for played in (one, other)]
    assert losses[0] != losses[1]
    assert len({summary["parameters"] for summary in other.summaries.values()}) == 1


@pytest.mark.parametrize("name", ["qsgd-4bit", "none"])
def test_rehearsing_draws_nothing_from_the_nodes_randomness(name: str) -> None:
    setting = stage(name, stop={"steps": 1})
    states = {}
    for node, role in setting.roles.items():

        def noted(node: str = node, run: Any = role.run) -> dict[str, Any]:
            states[node] = setting.nodes[node].rng.getstate()
            return run()

        role.run = noted  # type: ignore[method-assign]
    setting.play()
    for node in ("server", "worker-0", "worker-1"):
        assert states[node] == Random(f"1/{node}").getstate()


def test_dense_float32_is_exact_on_the_wire() -> None:
    """The baseline's payload is its elements and a header: nothing is lost by the way that others need."""
    setting = stage("none", 1, stop={"steps": 1})
    listener = Listener(setting, "worker-0")
    size = setting.play().of("worker-0", "step")[0]["size"]
    assert listener.lengths == [HEADER_BYTES + 4 * size]
    assert Fp32.code == 0


@pytest.fixture(scope="module")
def told() -> Played:
    """Ten steps with a report at every third."""
    row = replace(resolve("laplace-0.05"), name="told", selector_options={"fit_every": 3})
    ALGORITHMS["told"] = row
    return Stage(2, "told", stop={"steps": 10}).play()


def test_fits_are_reported_when_they_are_due(told: Played) -> None:
    expected = {field.name for field in fields(FitRecord)} | {"v", "kind"}
    for worker in ("worker-0", "worker-1"):
        reports = told.of(worker, "fit")
        assert [report["step"] for report in reports] == [1, 4, 7, 10]
        for report in reports:
            assert set(report) == expected
            assert (report["bucket"], report["size"], report["sample"]) == ("whole", 9610, 9610)
            assert 0 < report["w1_laplace"] < report["b"] < report["sigma"]
            assert report["laplace"] == report["w1_laplace"] / report["b"]


def test_the_first_fit_is_of_the_gradient_and_later_ones_of_what_was_left_out_too(
    told: Played,
) -> None:
    """Error feedback keeps nineteen of twenty elements back: what is compressed grows well beyond a gradient."""
    first, *_, last = told.of("worker-0", "fit")
    setting = Stage(2, "told", stop={"steps": 1})
    role = setting.roles["worker-0"]
    setting.play()
    gradient = role._replica.flat.gradients  # type: ignore[union-attr]
    assert first["b"] == pytest.approx(float(gradient.double().abs().mean()), rel=1e-5)
    assert last["b"] > 2 * first["b"]


def test_reports_change_nothing_of_a_run(told: Played) -> None:
    plain = stage("laplace-0.05", stop={"steps": 10}).play()
    for worker in ("worker-0", "worker-1"):
        assert told.of(worker, "step") == plain.of(worker, "step")
        assert plain.of(worker, "fit") == []
    assert told.summaries == plain.summaries


def test_parameters_that_are_sent_whole_have_no_fit() -> None:
    options = {"selector_options": {"fit_every": 1}, "buckets": "layer", "dense_below": 1000}
    ALGORITHMS["told-layers"] = replace(resolve("laplace-0.05"), name="told-layers", **options)
    reports = Stage(1, "told-layers", stop={"steps": 2}).play().of("worker-0", "fit")
    assert [(r["step"], r["bucket"], r["size"]) for r in reports] == [
        (step, name, size) for step in (1, 2) for name, size in (("1.weight", 8192), ("3.weight", 1280))
    ]  # fmt: skip


def test_a_fit_is_made_in_the_time_of_the_computation() -> None:
    """Time passes on the virtual clock only while the report is made: all of it is in that phase."""
    ALGORITHMS["told-slow"] = replace(
        resolve("laplace-0.05"), name="told-slow", selector_options={"fit_every": 2}
    )
    setting = Stage(1, "told-slow", stop={"steps": 4}, pace=None)
    node = setting.nodes["worker-0"]
    record = node.record

    def slowly(event: dict[str, object]) -> None:
        if event["kind"] == "fit":
            node.sleep_until(node.now() + 1.0)
        record(event)

    node.record = slowly  # type: ignore[method-assign]
    steps = setting.play().of("worker-0", "step")
    assert [step["compute_s"] for step in steps] == pytest.approx([1.0, 0.0, 1.0, 0.0])
    assert [step["busy_s"] for step in steps] == pytest.approx([0.0] * 4)
    assert steps[0]["delay_s"] == pytest.approx(steps[1]["delay_s"], rel=0.2)
    assert [step["compress_s"] for step in steps] == pytest.approx([0.0] * 4)
