"""Controllers run again on records: exactly, through JSON, and from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import typer

from testbed.cli.replay import replay_controller
from testbed.compatibility import known, resolve
from testbed.control.adatopk import AdaTopK
from testbed.control.base import (
    LEVELS,
    Controller,
    Observation,
    controller_seed,
    controllers,
    replay_decisions,
    replay_densities,
)
from testbed.control.schedules import Fixed
from testbed.errors import ExperimentError, InputError

STEPS = 80
BUCKETS = {
    name: {
        "bucket": bucket, "start_s": 0.2 - left_s, "elements": 1000.0, "sent": 50.0, "left_s": left_s, "compress_s": 0.0001, "delay_s": 0.02, "send_s": 0.01,
        "bytes_up": 300.0, "bytes_down": 500.0,
    }
    for name, bucket, left_s in (("last", 0.0, 0.1), ("first", 1.0, 0.0))
}  # fmt: skip
CURVES = {"last": [3.0, *(1 - k for k in LEVELS)], "first": [1.0, *(1 - k**0.5 for k in LEVELS)]}


def worker(node: str, controller: Controller, rng: Random) -> list[dict[str, Any]]:
    """What a worker records: the density it asked the controller for, and what it showed it then."""
    records: list[dict[str, Any]] = []
    for step in range(STEPS):
        density = controller.density()
        delay_s = 0.05 + density * (0.5 + rng.random())
        seen = Observation(
            step, step // 9, delay_s, rng.randrange(33) / 32, 4000, density, buckets=BUCKETS, curves=CURVES
        )  # fmt: skip
        controller.observe(seen)
        record = {"v": 1, "kind": "step", "node": node, "step": step, "density": density}
        records.append({**record, "controller": seen.to_json()})
        if step % 9 == 8:
            records.append({"v": 1, "kind": "epoch", "node": node, "epoch": step // 9})
    return records


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run directory of two workers, as far as controllers are concerned."""

    def make(name: str = "adatopk", seed: int = 5) -> Path:
        algorithm = resolve(name)
        (tmp_path / "events").mkdir()
        manifest = {"algorithm": algorithm.to_json(), "seed": seed, "scenario": "test"}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        for rank, node in enumerate(["left", "right"]):
            controller = controllers.get(algorithm.controller)(
                seed=controller_seed(seed, 0 if algorithm.agree else rank), **algorithm.options
            )
            lines = map(json.dumps, worker(node, controller, Random(rank)))
            path = tmp_path / "events" / f"worker-{rank}.jsonl"
            path.write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / "events" / "server-0.jsonl").write_text('{"v":1,"kind":"round","step":0}\n')
        return tmp_path

    return make


def spoil(run: Path, step: int) -> None:
    """Change one recorded density of worker 1 in its last bits."""
    path = run / "events" / "worker-1.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        if record["kind"] == "step" and record["step"] == step:
            record["density"] *= 1 + 1e-15
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_the_same_inputs_give_the_same_densities() -> None:
    records = worker("w", AdaTopK(seed=3), Random(1))
    records = json.loads(json.dumps(records))
    densities = replay_densities(records, lambda: AdaTopK(seed=3))
    assert densities == [record["density"] for record in records if record["kind"] == "step"]
    assert len(set(densities)) > 20
    assert replay_decisions(records, lambda: AdaTopK(seed=3)).exact
    assert not replay_decisions(records, lambda: AdaTopK(seed=4)).exact


def test_records_without_observations() -> None:
    """Workers whose controller learns nothing need not record what it saw."""
    records = [
        {"kind": "step", "step": step, "density": 0.5, "controller": None} for step in (0, 1)
    ]
    assert replay_decisions(records, lambda: Fixed(seed=0, density=0.5)).exact
    assert replay_decisions(records, lambda: Fixed(seed=0, density=0.4)).mismatches == (0, 1)


def test_nothing_recorded_is_not_exact() -> None:
    assert not replay_decisions([], lambda: Fixed(seed=0)).exact


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "step", "step": 3, "controller": None},
        {"kind": "step", "step": 3, "density": 0.1, "controller": {"step": 3}},
        {"kind": "step", "step": 3, "density": "much", "controller": None},
    ],
)
def test_records_that_cannot_be_used(record: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replay_decisions([record], lambda: Fixed(seed=0))


@pytest.mark.parametrize("name", ["adatopk", "adatopk-kd0.1", "adatopk-slope", "topk-0.15", "none"])
def test_command_on_its_own_run(
    name: str, make_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    replay_controller(make_run(name))
    assert capsys.readouterr().out == (
        f"left: exact: {STEPS} steps compared, 0 mismatches\n"
        f"right: exact: {STEPS} steps compared, 0 mismatches\n"
    )


def test_command_finds_a_difference_in_the_last_bits(
    make_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    spoil(run, 40)
    with pytest.raises(typer.Exit) as left:
        replay_controller(run)
    assert left.value.exit_code == 1
    assert "right: NOT exact: 1 of 80 steps differ, the first is step 40" in capsys.readouterr().out
    replay_controller(run, node="left")
    assert capsys.readouterr().out.startswith("left: exact")


def test_command_with_another_controller_is_open_loop(
    make_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    replay_controller(run, controller="topk-0.1", as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["open_loop"] is True
    assert [node["node"] for node in report["nodes"]] == ["left", "right"]
    assert report["nodes"][0]["replayed"] == [0.1] * STEPS
    assert report["nodes"][0]["exact"] is None
    replay_controller(run, controller="fixed")
    assert "open loop, 80 steps, mean density 1 (recorded" in capsys.readouterr().out
    replay_controller(run, controller="adatopk", as_json=True)
    assert json.loads(capsys.readouterr().out)["open_loop"] is False


@pytest.mark.parametrize("name", [row.name for row in known() if row.controller not in ("fixed", "accordion")])  # fmt: skip
def test_command_on_a_run_of_every_rule(
    name: str, make_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exact on its own run, and any other rule in open loop."""
    run = make_run(name)
    replay_controller(run)
    assert capsys.readouterr().out.count(f"exact: {STEPS} steps compared, 0 mismatches\n") == 2
    replay_controller(run, controller="dc2-da4" if name != "dc2-da4" else "aimd-delay")
    assert capsys.readouterr().out.count(f"open loop, {STEPS} steps, mean density") == 2


def test_command_says_what_a_record_lacks(make_run: Callable[..., Path]) -> None:
    with pytest.raises(ExperimentError, match=r"'accordion': step 0 has no `layers`"):
        replay_controller(make_run(), controller="accordion")


def test_command_on_a_run_that_was_killed(
    make_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    path = run / "events" / "worker-0.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    replay_controller(run, node="left")
    assert f"left: exact: {STEPS - 1} steps" in capsys.readouterr().out


def test_command_refuses(make_run: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="manifest"):
        replay_controller(tmp_path / "nowhere")
    run = make_run()
    with pytest.raises(InputError, match=r"no worker is called 'middle'.*left, right"):
        replay_controller(run, node="middle")
    with pytest.raises(InputError, match=r"--controller: unknown algorithm 'addatopk'.*'adatopk'"):
        replay_controller(run, controller="addatopk")
    (run / "manifest.json").write_text('{"algorithm": "adatopk", "seed": 1}')
    with pytest.raises(InputError, match="no algorithm and seed"):
        replay_controller(run)
