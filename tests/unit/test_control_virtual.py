"""Every algorithm whose density changes, in real workers on a virtual clock, and its records run again."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from virtual_run import SCENARIO, carried_out
from virtual_setup import ALGORITHMS, Stage

from testbed.algorithm import Algorithm
from testbed.compatibility import known, resolve
from testbed.control.base import controller_seed, controllers, replay_decisions, replay_densities
from testbed.errors import ExperimentError, InputError
from testbed.records.run_directory import read_events
from testbed.scenario.model import Optimizer, ScheduleModel, Stop
from testbed.training.ddp.bucket import row_of

torch.set_num_threads(1)
NAMES = [row.name for row in known() if row.controller not in ("fixed", "adatopk")]
STEPS = 25
"""Five epochs."""


def played(row: Algorithm, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """Step records by worker, as they are read from a run's files."""
    monkeypatch.setitem(ALGORITHMS, row.name, row)
    schedule = ScheduleModel(name="step", every=3, gamma=0.5)
    optimizer = Optimizer(lr=0.1, schedule=schedule)
    stage = Stage(2, row.name, stop=Stop(steps=STEPS), optimizer=optimizer, batch=128)
    done = stage.play()
    records = {node: done.of(node, "step") for node in ("worker-0", "worker-1")}
    return {node: json.loads(json.dumps(steps)) for node, steps in records.items()}


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_and_replays_exactly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = resolve(name)
    make = controllers.get(row.controller)
    for rank, steps in enumerate(played(row, monkeypatch).values()):
        again = partial(make, seed=controller_seed(1, rank), **row.options)
        assert replay_decisions(steps, again).exact
        assert len(steps) == STEPS
        assert all(step["sent_count"] >= 1 for step in steps)


def test_layers_of_accordion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epoch 2 is compared with 1, by norms; then the learning rate is reduced in epoch 4, seen at the next check."""
    row = Algorithm(
        "mine", "topk", "feedback", "accordion", {"every_epochs": 2, "threshold": 0.3}, buckets="layer"
    )  # fmt: skip
    (steps, _) = played(row, monkeypatch).values()
    densities = [step["density"] for step in steps]
    assert densities[:11] + densities[21:] == pytest.approx([0.99] * 15)
    assert all(0.1 < density < 0.2 for density in densities[11:21]), "one small layer changed"
    for step in steps:
        assert step["sent_count"] / step["size"] == pytest.approx(step["density"], abs=0.01)


def test_each_way_of_the_path_has_the_rate_of_its_own_links(tmp_path: Path) -> None:
    """There: the server's 30 Mbit/s, shared by two workers; back: its 16, until they are 4."""
    text = SCENARIO.replace("{up: {rate: 20 Mbit/s", "{up: {rate: 16 Mbit/s")
    text = text.replace("down: {rate: 20 Mbit/s", "down: {rate: 30 Mbit/s")
    text = text.replace("rate: 5 Mbit/s", "rate: 4 Mbit/s, direction: up")
    text = text.replace("[none, topk-0.01]", "[oracle]")
    (entry,) = carried_out(tmp_path, text).runs
    seen = [step["controller"] for step in read_events(Path(entry["dir"]))["step"]]
    assert {(one["share_up_bits"], one["share_down_bits"]) for one in seen} == {
        (15e6, 8e6),
        (15e6, 2e6),
    }


@pytest.fixture(scope="module")
def played_once() -> list[dict[str, Any]]:
    """Records of a worker."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        (steps, _) = played(resolve("adatopk"), monkeypatch).values()
    return steps


@pytest.fixture
def before(played_once: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of a worker, made before observations had the newer fields."""
    kept = (
        "step",
        "epoch",
        "delay_s",
        "accuracy",
        "bytes_sent",
        "density",
        "link_rate_bits",
        "extra",
    )
    steps = deepcopy(played_once)
    for step in steps:
        step["controller"] = {key: step["controller"][key] for key in kept}
    return steps


@pytest.mark.parametrize("name", controllers.names())
def test_records_without_the_newer_fields(name: str, before: list[dict[str, Any]]) -> None:
    """In open loop: every controller makes do, or says which field it lacks."""
    try:
        densities = replay_densities(before, lambda: controllers.get(name)(seed=1))
    except (ExperimentError, InputError) as error:
        lacking = "layers" if name == "accordion" else "buckets"
        assert f"step 1 has no `{lacking}`" in str(error)
        assert name in ("accordion", "algc", "lags", "lgreco")
    else:
        assert len(densities) == STEPS
        assert all(0 < density <= 1 for density in densities)


def test_a_hook_has_no_norms_to_tell() -> None:
    assert row_of("dc2-da4", None).controller == "dc2-da4"
    with pytest.raises(InputError, match=r"'accordion.*watches layers.*run it in the testbed"):
        row_of("accordion", None)
