"""Workers that exchange gradients among themselves: the same training as with a server, other ways of bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_run import carried_out

from testbed.errors import InputError
from testbed.records.run_directory import read_events
from testbed.runner.experiment import prepare

SCENARIO = """
name: peers
nodes: {server: {role: server}, worker: {role: worker, count: 3}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, batch: 32, optimizer: {name: sgd, lr: 0.1}, pace: 100 ms,
  stop: {steps: 16}, evaluate_every: 8}
algorithms:
  - none
  - ssgd
  - topk-0.05
  - {name: peers-topk, from: topk-0.05, exchange: peers}
  - {name: peers-da2, from: dc2-da2, exchange: peers}
  - {name: peers-qsgd, from: none, values: qsgd, exchange: peers}
seeds: [1]
"""


def test_the_training_is_that_with_a_server_to_the_last_bit(tmp_path: Path) -> None:
    runs = {run["algorithm"]: run for run in carried_out(tmp_path, SCENARIO).runs}
    assert {run["verdict"] for run in runs.values()} == {"valid"}
    for ours, servers in (("ssgd", "none"), ("peers-topk", "topk-0.05")):
        assert _parameters(runs[ours]["dir"]) == _parameters(runs[servers]["dir"])
        assert len(_parameters(runs[ours]["dir"])) == 1
        assert runs[ours]["accuracy"] == runs[servers]["accuracy"] is not None
        # everybody to two others, where it was everybody to one server
        assert runs[ours]["bytes_up"] == runs[ours]["bytes_down"] == 2 * runs[servers]["bytes_up"]


def test_no_server_is_needed(tmp_path: Path) -> None:
    alone = SCENARIO.replace("server: {role: server}, ", "").replace("  - none\n", "")
    alone = alone.replace("  - topk-0.05\n", "")
    runs = carried_out(tmp_path, alone, algorithms=["ssgd"]).runs
    assert runs[0]["verdict"] == "valid" and runs[0]["accuracy"] is not None
    with pytest.raises(InputError, match=r"'none' exchanges by 'ps', and there is no server"):
        prepare(tmp_path / "virtual.yaml", ["none"])


def test_a_run_among_peers_cannot_stop_at_an_accuracy(tmp_path: Path) -> None:
    path = tmp_path / "stop.yaml"
    path.write_text(SCENARIO.replace("{steps: 16}", "{accuracy: 0.5}"))
    with pytest.raises(InputError, match="without a server that could stop"):
        prepare(path, ["ssgd"])


def test_options_are_those_of_the_exchange(tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(
        SCENARIO.replace("exchange: peers}", "exchange: peers, exchange_options: {r: 2}}", 1)
    )
    with pytest.raises(InputError, match="unknown option 'r'"):
        prepare(path)


def _parameters(directory: str) -> set[str]:
    return {str(epoch["parameters"]) for epoch in read_events(Path(directory)).get("epoch", [])}
