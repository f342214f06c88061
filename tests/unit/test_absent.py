"""Workers that leave a run and return to it, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from virtual_run import carried_out

from testbed.errors import InputError
from testbed.records.run_directory import read_events, read_json

SCENARIO = """
name: churn
nodes: {server: {role: server}, worker: {role: worker, count: 3}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, batch: 16, optimizer: {name: sgd, lr: 0.1, momentum: 0.5}, pace: 50 ms,
  stop: {steps: 30}, evaluate_every: 10}
algorithms: [none]
events:
  - {kind: absent, nodes: [worker-0], at: 0 s, for: 300 ms}
  - {kind: absent, nodes: [worker-1], at: 500 ms, for: 800 ms}
"""
LATE = "  - {kind: absent, nodes: [worker-2], at: 700 ms, for: 20 s}\n"


def ran(folder: Path, text: str = SCENARIO) -> Path:
    (entry,) = carried_out(folder, text).runs
    return Path(entry["dir"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("churn"))


def away(directory: Path) -> dict[str, dict[str, Any]]:
    return {one["node"]: one for one in read_events(directory)["away"]}


def test_the_run_goes_on_without_them_and_takes_them_back(made: Path) -> None:
    events, summary = read_events(made), read_json(made / "summary.json")
    assert summary["verdict"] == "valid" and summary["steps"] == 30
    for node, (from_s, to_s) in {"worker-0": (0.0, 0.3), "worker-1": (0.5, 1.3)}.items():
        one = away(made)[node]
        missed = set(range(one["step"], one["returned"] + 1))
        mine = {step["step"] for step in events["step"] if step["node"] == node}
        assert missed and mine == set(range(1, 31)) - missed
        assert from_s <= one["left_s"] < from_s + 0.25 and one["asked_s"] == pytest.approx(to_s)


def test_means_are_of_those_who_are_there(made: Path) -> None:
    gone = {peer + 1: away(made)[f"worker-{peer}"] for peer in (0, 1)}
    for round_ in read_events(made)["round"]:
        senders = {int(one["sender"]) for one in round_["messages"]}
        assert senders == {1, 2, 3} - {
            peer for peer, one in gone.items() if one["step"] <= round_["step"] <= one["returned"]
        }
        assert round_["others"] == []


def test_who_returns_has_parameters_and_velocity_of_the_others(made: Path) -> None:
    """What is compared at the end of the run, and of every epoch; a fault would make it invalid."""
    one = away(made)["worker-1"]
    size = read_events(made)["step"][0]["size"]
    assert one["bytes_down"] == 2 * 4 * size + 40 and one["bytes_up"] == 2 * 40
    assert read_json(made / "summary.json")["reasons"] == ["virtual time: links are modelled"]


def test_bytes_are_all_counted(made: Path) -> None:
    events, summary = read_events(made), read_json(made / "summary.json")
    for way in ("bytes_up", "bytes_down"):
        taken = [*events["step"], *events["away"]]
        assert summary[way] == sum(one[way] for one in taken)


def test_who_is_away_at_the_end_is_told_when_it_returns(tmp_path: Path) -> None:
    directory = ran(tmp_path, (SCENARIO + LATE).replace("count: 3", "count: 4"))
    summary, one = read_json(directory / "summary.json"), away(directory)["worker-2"]
    assert summary["verdict"] == "valid" and summary["steps"] == 30
    assert one["returned"] == 30 and summary["time_s"] < 5 < one["asked_s"]


def test_the_same_seed_leaves_at_the_same_steps(made: Path, tmp_path: Path) -> None:
    assert read_events(ran(tmp_path)) == read_events(made)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[worker-0]", "[worker]"), "nobody would be left"),
        (("[worker-0]", "[server]"), "'server' is no worker: only workers leave"),
        (("for: 300 ms", "for: 0 s"), "an absence lasts longer than 0"),
        (("[worker-1], at: 500", "[worker-0], at: 200"), "'worker-0' is away at that time"),
        (("[none]", "[asgd]"), "need the exchange `ps`"),
        (("[none]", "[none+overlap]"), "whole messages"),
        (("server}", "server, count: 2}"), "one server"),
        (("model: mlp", "model: mlp, participation: {workers: 1}"), "and nobody else rests"),
        (("model: mlp", "model: mlp, gradients: none"), "take the run's parameters"),
        (("count: 3", "count: 40"), "more than 32 simulated workers"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ran(tmp_path, SCENARIO.replace(*change))
