"""What a scenario and the flags beside it come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import InputError
from testbed.runner import run
from testbed.runner.experiment import prepare

ROOT = Path(__file__).parents[2]
SCENARIO = """\
name: small
nodes: {server: {role: server}, worker: {role: worker, count: 2}}
links: {default: {up: {rate: 10 Mbit/s, queue: 50 ms}, down: {rate: 10 Mbit/s, queue: 50 ms}}}
train: {stop: {steps: 5}, optimizer: {momentum: 0.9}}
algorithms: [none]
"""


def test_flags_are_held_against_the_training_too(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    assert [row.name for row in prepare(path, ["topk-0.1"]).algorithms] == ["topk-0.1"]
    with pytest.raises(InputError, match=r"--algo.*'dgc-0\.1'.*would count it twice"):
        prepare(path, ["dgc-0.1"])
    with pytest.raises(InputError, match="--algo: unknown algorithm 'foo'"):
        prepare(path, ["foo"])
    with pytest.raises(InputError, match="--algo: an algorithm is asked for twice"):
        prepare(path, ["none", "none"])


def test_fixed_at_the_mean_of_a_run(tmp_path: Path) -> None:
    """The run's directory is relative to the file; a flag may ask for the algorithm by its name."""
    path = tmp_path / "small.yaml"
    ablation = "{name: ablation, from: adatopk-kd0.1, memory: none, mean_of: runs/one}"
    path.write_text(SCENARIO.replace("[none]", f"[none, {ablation}]"))
    with pytest.raises(InputError, match=r"small.yaml: .*'ablation': mean_of 'runs/one': .*summary.json: cannot be read"):  # fmt: skip
        prepare(path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    summary = tmp_path / "runs" / "one" / "summary.json"
    summary.write_text(json.dumps({"mean_k": 0.0625, "ended": True}))
    for experiment in (prepare(path), prepare(path, ["none", "ablation"])):
        row = experiment.algorithms[1]
        assert (row.controller, row.options) == ("fixed", {"density": 0.0625})
        assert (row.selector, row.memory) == ("topk", "none")


@pytest.mark.parametrize(
    ("summary", "sentence"),
    [
        ({"mean_k": None, "ended": True}, "no mean density above 0 and at most 1: its mean_k is None"),
        ({"ended": True}, "its mean_k is None"),
        ({"mean_k": 0.0, "ended": True}, "its mean_k is 0.0"),
        ({"mean_k": 1.5, "ended": True}, "its mean_k is 1.5"),
        ({"mean_k": True, "ended": True}, "its mean_k is True"),
        ({"mean_k": 0.1, "ended": False}, "the run was cut short"),
    ],
)  # fmt: skip
def test_runs_without_a_mean(summary: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO.replace("[none]", "[{name: a, from: topk-0.1, mean_of: .}]"))
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(InputError, match=rf"small.yaml: algorithm 'a': mean_of '.': .*{sentence}"):
        prepare(path)


@pytest.mark.parametrize(
    "beside", ["density: 0.1", "rule: adatopk", "controller: {k_max: 0.1}"]
)  # fmt: skip
def test_mean_of_stands_alone(beside: str, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO.replace("[none]", f"[{{name: a, from: topk-0.1, mean_of: ., {beside}}}]"))  # fmt: skip
    key = beside.partition(":")[0]
    with pytest.raises(InputError, match=rf"small.yaml:5: algorithms\[0\].*`{key}` cannot stand"):
        prepare(path)


@pytest.mark.parametrize("fabric", ["docker", "swarm"])
def test_containers_have_no_package_of_somebodys_own(
    fabric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before any of them is started."""
    experiment = prepare(ROOT / "scenarios" / "demo.yaml", ["topk-0.15"])
    monkeypatch.setattr(
        run.selectors, "package_of", {"topk": "the package mine", "dense": None}.get
    )
    with pytest.raises(InputError, match="--fabric: selector 'topk' is from the package mine"):
        run._check(experiment, fabric, parallel=1)
