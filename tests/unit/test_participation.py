"""Steps in which only some workers take part, in virtual time: who, what is averaged, what is counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from virtual_run import carried_out

from testbed.errors import InputError
from testbed.fidelity.run_checks import frames_disagree
from testbed.fidelity.service_curve import followed, groups
from testbed.records.run_directory import read_events, read_json
from testbed.scenario.model import Participation
from testbed.training.membership import participants

SCENARIO = """
name: partial
nodes: {server: {role: server}, worker: {role: worker, count: 5}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, batch: 16, optimizer: {name: sgd, lr: 0.1, momentum: 0.5}, pace: 50 ms,
  participation: PART, stop: {steps: 24}, evaluate_every: 10}
algorithms: [none]
"""


def ran(folder: Path, part: str = "{workers: 2}", algorithm: str = "none", count: int = 5) -> Path:
    text = SCENARIO.replace("PART", part).replace("[none]", f"[{algorithm}]")
    (entry,) = carried_out(folder, text.replace("count: 5", f"count: {count}")).runs
    return Path(entry["dir"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("partial"))


def test_everybody_is_drawn_as_often_and_with_everybody_else() -> None:
    drawn = [participants(1, step, 6, 2) for step in range(1, 3001)]
    assert all(len(set(one)) == 2 and list(one) == sorted(one) for one in drawn)
    pairs = Counter(drawn)
    assert len(pairs) == 15 and min(pairs.values()) > 140 and max(pairs.values()) < 265
    assert participants(2, 1, 50, 20) != participants(1, 1, 50, 20) != participants(1, 2, 50, 20)


@pytest.mark.parametrize(("share", "many"), [(0.5, 4), (0.01, 1), (1.0, 8), (0.3, 2)])
def test_a_share_is_a_number(share: float, many: int) -> None:
    assert Participation(share=share).many(8) == many


def test_a_worker_sends_in_the_steps_that_were_drawn_for_it(made: Path) -> None:
    events, summary = read_events(made), read_json(made / "summary.json")
    assert summary["verdict"] == "valid" and summary["steps"] == 24
    for round_ in events["round"]:
        ranks = participants(1, round_["step"], 5, 2)
        assert [one["sender"] for one in round_["messages"]] == [1 + rank for rank in ranks]
        assert sorted([*round_["others"], *(1 + rank for rank in ranks)]) == [1, 2, 3, 4, 5]
    assert len(events["step"]) == 2 * 24 and len(events["rest"]) == 3 * 24
    taken = Counter((one["node"], one["step"]) for one in [*events["step"], *events["rest"]])
    assert len(taken) == 5 * 24


def test_replicas_stay_alike_and_learn(made: Path) -> None:
    """They are compared at the end, and after every epoch; a fault would make the run invalid."""
    found = read_json(made / "summary.json")
    assert found["accuracy"] > 0.3 and found["reasons"] == ["virtual time: links are modelled"]


def test_bytes_are_those_that_were_sent(made: Path) -> None:
    events, summary = read_events(made), read_json(made / "summary.json")
    sizes = {step["bytes_up"] for step in events["step"]}
    assert len(sizes) == 1 and summary["bytes_up"] == 48 * sizes.pop()
    assert summary["bytes_down"] == sum(round_["bytes_down"] for round_ in events["round"])
    taken = [*events["step"], *events["rest"]]
    assert frames_disagree(taken, events["round"]) == []
    wrong = [{**taken[0], "bytes_down": 1}, *taken[1:]]
    assert len(frames_disagree(wrong, events["round"])) == 1


def test_groups_know_who_sent_and_who_was_answered(made: Path) -> None:
    links = {n["peer"]: name for name, n in read_json(made / "manifest.json")["nodes"].items()}
    found = list(groups(*followed(read_events(made)), links))
    ups = [group for group in found if group.direction == "up"]
    downs = [group for group in found if group.direction == "down"]
    assert len(ups) == len(downs) == 24
    assert {len(group.loads) for group in ups} == {2} and {len(group.loads) for group in downs} == {
        5
    }


def test_a_step_is_as_long_as_it_is_expected_to_be(made: Path) -> None:
    summary = read_json(made / "summary.json")
    assert summary["expected_step_s"] == pytest.approx(summary["step_s"], rel=0.05)


def test_the_memory_of_who_rests_stays_as_it_is(tmp_path: Path) -> None:
    """All take part in one run, the same two in the other; the residual of a worker has its own gradients alone."""
    directory = ran(tmp_path, algorithm="topk-0.05")
    events = read_events(directory)
    for step in events["step"]:
        assert step["sent_count"] == pytest.approx(0.05 * step["size"], rel=0.02)
    assert read_json(directory / "summary.json")["verdict"] == "valid"


def test_all_of_all_is_the_run_without_it(tmp_path: Path) -> None:
    whole = read_events(ran(tmp_path / "a", "{share: 1.0}"))
    text = SCENARIO.replace("participation: PART, ", "")
    (entry,) = carried_out(tmp_path / "b", text).runs
    assert whole == read_events(Path(entry["dir"]))


def test_workers_that_share_a_model_rest_as_well(tmp_path: Path) -> None:
    directory = ran(tmp_path, "{share: 0.1}", count=40)
    events = read_events(directory)
    assert read_json(directory / "summary.json")["verdict"] == "valid"
    assert len(events["step"]) == 4 * 24 and len(events["rest"]) == 36 * 24


def test_several_servers_answer_those_who_rest(tmp_path: Path) -> None:
    text = SCENARIO.replace("PART", "{workers: 2}").replace("server}", "server, count: 2}")
    (entry,) = carried_out(tmp_path, text).runs
    assert entry["verdict"] == "valid" and entry["steps"] == 24


@pytest.mark.parametrize(
    ("part", "algorithm", "message"),
    [
        ("{workers: 6}", "none", "6 workers are to take part in a step, and there are 5"),
        ("{workers: 2, share: 0.5}", "none", "give `workers` or `share`, one of them"),
        ("{workers: 2}", "asgd", "needs the exchange `ps`"),
        ("{workers: 2}", "backup-1", "needs the exchange `ps`"),
        ("{workers: 2}", "ssgd", "needs the exchange `ps`"),
        ("{workers: 2}", "adatopk-agreed", "controllers that do not agree"),
        ("{workers: 2}", "none+overlap", "whole messages"),
    ],
)
def test_what_is_refused(tmp_path: Path, part: str, algorithm: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ran(tmp_path, part, algorithm)
