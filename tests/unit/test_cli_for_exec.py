"""``validate --exec`` and ``plan --exec``: scenarios for jobs that are not ours, and who is told of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.cli import main

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
FOUR = """
name: four
nodes: {worker: {role: worker, count: 4}}
links: {default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}}
"""
HINT = "`testbed exec`, which trains nothing itself, takes this scenario as it is"


def left(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return int(left.value.code or 0)


def written(folder: Path, text: str) -> str:
    path = folder / "scenario.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
@pytest.mark.parametrize("verb", ["validate", "plan"])
def test_scenarios_of_the_examples(
    verb: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert left(verb, str(path), "--exec") == 0
    assert left(verb, str(path)) == 2
    assert HINT in capsys.readouterr().err


def test_it_is_said_what_it_is_valid_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert left("validate", str(EXAMPLES[0]), "--exec") == 0
    out = capsys.readouterr().out
    assert "valid for `testbed exec`; 0 servers, 4 workers" in out
    assert "algorithms" not in out
    assert left("validate", str(EXAMPLES[0]), "--exec", "--json") == 0
    assert json.loads(capsys.readouterr().out).keys().isdisjoint({"algorithms", "seeds", "pacing"})


def test_a_plan_for_a_job_has_its_links_alone(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--exec", "--json", "--fabric", "docker")
    assert left("plan", str(EXAMPLES[0]), *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["links"]) == 8
    assert [found[key] for key in ("pacing", "dense_step", "compose")] == [None] * 3


@pytest.mark.parametrize(
    "text",
    [
        FOUR + "algorithms: [topk-0.01]\n",  # whoever names an algorithm means to train
        FOUR + "train: {task: digits}\n",
        FOUR + "events: [{kind: step, links: [nobody], at: 1 s, rate: 1 Mbit/s}]\n",
    ],
)
def test_others_are_not_told_of_jobs(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert left("validate", written(tmp_path, text)) == 2
    assert "testbed exec" not in capsys.readouterr().err


def test_what_exec_refuses_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flow = "traffic: [{name: noise, from: worker-0, to: worker-1, kind: tcp}]\n"
    assert left("validate", written(tmp_path, FOUR + flow), "--exec") == 2
    assert "'noise': worker-0, worker-1 runs the command" in capsys.readouterr().err
    assert left("plan", written(tmp_path, FOUR), "--exec", "--fabric", "sim") == 2
    capsys.readouterr()
    image = FOUR.replace("count: 4", "count: 4, image: my/training")
    for fabric in ("netns", "swarm"):
        assert left("plan", written(tmp_path, image), "--exec", "--fabric", fabric) == 2
        assert "Use --fabric docker" in capsys.readouterr().err
    assert left("plan", written(tmp_path, FOUR), "--exec", "--fabric", "swarm") == 0
    for option in ("--pull", "--writable-root"):
        command = ("exec", written(tmp_path, FOUR), "--fabric", "netns", option, "--", "true")
        assert left(*command) == 2
        assert f"{option}: nodes on the netns fabric have no images" in capsys.readouterr().err
