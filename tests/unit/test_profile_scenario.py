"""A scenario that names a profile: read, checked, dilated, and handed to nodes as numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_here import call

from testbed.errors import InputError
from testbed.records.run_directory import RunDirectory
from testbed.runner.experiment import JobFactory, prepare
from testbed.runner.manifest_writer import describe
from testbed.scenario.load import Loaded, load
from testbed.scenario.profile import ProfileFile, read_profile, shipped
from testbed.training.job import Job
from testbed.training.profiling import profile_of

SCENARIO = """
name: layers
nodes: {{server: {{role: server}}, worker: {{role: worker, count: 2}}}}
links: {{default: {{up: {{rate: 9 Mbit/s, queue: 50 ms}}, down: {{rate: 9 Mbit/s, queue: 50 ms}}}}}}
train: {{{train}}}
dilation: {dilation}
algorithms: [{algorithm}]
"""
OVERLAPS = "{name: a, from: none, bucket_bytes: 1 KiB, overlap: true}"
OWN = {
    "format": "narrows-profile", "version": 1, "source": "measured", "about": "by hand", "device": "a lathe",
    "model": "mlp", "task": "digits", "width": 1.0, "batch": 32,
    "layers": [
        {"name": "1", "forward_s": 0.001, "backward_s": 0.002},
        {"name": "3", "forward_s": 0.003, "backward_s": 0.004},
    ],
}  # fmt: skip


def written(
    folder: Path, train: str, dilation: float = 1, algorithm: str = OVERLAPS, **changes: object
) -> Path:
    (folder / "p").mkdir(exist_ok=True)
    (folder / "p" / "own.json").write_text(json.dumps({**OWN, **changes}))
    path = folder / "s.yaml"
    path.write_text(SCENARIO.format(train=train, dilation=dilation, algorithm=algorithm))
    return path


MINE = "model: mlp, profile: p/own.json"


def job(path: Path) -> Job:
    """A worker's, as it arrives at its node."""
    experiment = prepare(path)
    spec = next(spec for spec in experiment.specs if spec.role == "worker")
    made = JobFactory(experiment, experiment.algorithms[0], 1, 1).of(spec)
    return Job.from_json(json.loads(json.dumps(made.to_json())))


def never() -> object:
    raise AssertionError("it was measured")


def test_a_file_gives_the_pace_too(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, MINE))
    assert float(loaded.scenario.train.pace or 0) == pytest.approx(0.010)
    assert loaded.profile is not None
    assert loaded.profile.device == "a lathe"


def test_the_hash_depends_on_what_a_file_says_not_on_where_it_is(tmp_path: Path) -> None:
    known = load(path := written(tmp_path, MINE)).hash
    (tmp_path / "p" / "own.json").rename(tmp_path / "other.json")
    path.write_text(path.read_text().replace("p/own", "./other"))
    assert load(path).hash == known
    assert load(written(tmp_path, MINE, about="again")).hash != known


def test_a_pace_that_is_given_stays(tmp_path: Path) -> None:
    found = profile_of(job(written(tmp_path, f"{MINE}, pace: 1 s")), ["1", "3"], never)  # type: ignore[arg-type]
    assert found is not None
    assert [one.forward_s for one in found.layers] == pytest.approx([0.1, 0.3])
    assert found.total_s == pytest.approx(1.0)


def test_nodes_get_the_numbers_dilated(tmp_path: Path) -> None:
    path = written(tmp_path, MINE, dilation=20)
    given = job(path)
    (tmp_path / "p" / "own.json").unlink()
    assert float(given.train.pace or 0) == pytest.approx(0.2)
    found = profile_of(given, ["1", "3"], never)  # type: ignore[arg-type]
    assert found is not None
    assert [one.backward_s for one in found.layers] == pytest.approx([0.04, 0.08])
    assert found.about == "by hand"


@pytest.mark.parametrize("train", ["model: mlp", "model: mlp, profile: measured, pace: 1 s", "model: mlp, profile: constant, pace: 1 s"])  # fmt: skip
def test_others_travel_without_numbers(tmp_path: Path, train: str) -> None:
    assert job(written(tmp_path, train)).profile is None


@pytest.mark.parametrize(
    ("train", "changes", "message"),
    [
        ("profile: constant", {}, "`constant` shares a time among the layers: give it"),
        ("profile: quick", {}, "unknown profile 'quick'. Known: measured, constant, v100-resnet18"),
        ("profile: none.json", {}, "none.json: cannot be read: No such file"),
        ("model: cnn, profile: p/own.json", {}, "it is of the model 'mlp', and 'cnn' is trained"),
        (MINE, {"version": 3}, "own.json: version: Input should be 1"),
        (MINE, {"batch": 64}, "its times are of batch 64, and 32 is trained"),
        (MINE, {"task": "mnist"}, "its times are of task mnist, and digits is trained"),
        (MINE, {"width": 0.5}, "its times are of width 0.5, and 1.0 is trained"),
        ("profile: ''", {}, "String should have at least 1 character"),
    ],
)
def test_what_does_not_fit_is_refused_at_its_line(
    tmp_path: Path, train: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        load(written(tmp_path, train, **changes))
    assert "s.yaml:5: train.profile: " in str(caught.value)
    assert message.lower() in str(caught.value).lower()


def test_in_proportion_sizes_do_not_matter(tmp_path: Path) -> None:
    assert load(written(tmp_path, f"{MINE}, pace: 1 s", batch=64, width=0.5, task="mnist")).profile


def test_other_layers_are_refused_before_anything_starts(tmp_path: Path) -> None:
    layers = [{"name": "1", "forward_s": 0.001, "backward_s": 0.002}]
    path = written(tmp_path, MINE, layers=layers)
    with pytest.raises(
        InputError, match=r"s\.yaml: train\.profile: the profile is of another model: layer '3'"
    ):
        prepare(path)
    assert "layer '3'" in str(call("validate", str(path)).exception)


def test_the_hash_is_of_its_times(tmp_path: Path) -> None:
    first = load(written(tmp_path, MINE)).hash
    assert load(written(tmp_path, MINE)).hash == first
    layers = [{**layer, "backward_s": 0.003} for layer in OWN["layers"]]  # type: ignore[dict-item, attr-defined]
    assert load(written(tmp_path, MINE, layers=layers)).hash != first


@pytest.mark.parametrize("name", list(shipped()))
def test_those_that_ship_are_of_the_models_that_ship(tmp_path: Path, name: str) -> None:
    model = name.removeprefix("v100-")
    experiment = prepare(written(tmp_path, f"task: cifar10, model: {model}, profile: {name}"))
    pace = experiment.scenario.train.pace
    assert pace is not None
    assert float(pace) == pytest.approx(read_profile(shipped()[name]).total_s, abs=1e-9)


def described(folder: Path, loaded: Loaded, fabric: str = "sim", overlap: bool = True) -> Path:
    directory, algorithm = RunDirectory(folder), {"name": "none", "overlap": overlap}
    describe(directory, loaded, [], [], fabric=fabric, algorithm=algorithm, seed=1)
    directory.close()
    return folder


def test_a_run_keeps_its_profile_and_is_itself_a_scenario(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, MINE, dilation=2))
    (run := tmp_path / "run").mkdir()
    described(run, loaded)
    (tmp_path / "p" / "own.json").unlink()
    again = load(run / "scenario.yaml")
    assert again.profile == loaded.profile
    assert again.scenario.train.pace == loaded.scenario.train.pace
    found = json.loads((run / "manifest.json").read_text())
    assert found["pace_s"] == pytest.approx(0.02)
    assert found["pacing"] == {
        "pace_s": pytest.approx(0.01), "profile": "p/own.json", "by_layer": True, "source": "measured", "layers": 2,
        "own_s": pytest.approx(0.01), "device": "a lathe",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "fabric", "overlap", "source"),
    [
        ("", "netns", True, "measured"),
        ("", "sim", True, "constant"),
        (", profile: measured", "sim", True, "constant"),
        (", profile: constant", "netns", True, "constant"),
        ("", "netns", False, None),
        (", profile: constant", "sim", False, None),
        (", profile: p/own.json", "sim", False, "measured"),
    ],
)
def test_a_run_says_what_was_done(
    tmp_path: Path, profile: str, fabric: str, overlap: bool, source: str | None
) -> None:
    loaded = load(written(tmp_path, f"model: mlp, pace: 5 ms{profile}"))
    (run := tmp_path / "run").mkdir()
    found = json.loads((described(run, loaded, fabric, overlap) / "manifest.json").read_text())[
        "pacing"
    ]
    assert (found["by_layer"], found["source"]) == (overlap, source)


@pytest.mark.parametrize("verb", ["validate", "plan"])
@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (MINE, "computation is held to 10 ms a step, shared among 2 layers as in p/own.json (measured: 10 ms on a lathe)"),
        (f"{MINE}, pace: 1 s", "computation is held to 1000 ms a step, shared among 2 layers as in p/own.json"),
        ("pace: 5 ms", "computation is held to 5 ms a step, shared among layers as measured on each node"),
        ("pace: 5 ms, profile: constant", "computation is held to 5 ms a step, shared among layers the same for"),
    ],
)  # fmt: skip
def test_it_is_said(tmp_path: Path, verb: str, train: str, sentence: str) -> None:
    path = str(written(tmp_path, train))
    result = call(verb, path)
    assert result.exit_code == 0, result.exception
    assert sentence in result.stdout
    pacing = json.loads(call(verb, path, "--json").stdout)["pacing"]
    assert f"{1e3 * pacing['pace_s']:.4g} ms a step" in sentence


@pytest.mark.parametrize("verb", ["validate", "plan"])
@pytest.mark.parametrize(
    ("train", "end"),
    [("pace: 10 ms", ""), (MINE, " (measured: 10 ms on a lathe)")],
)
def test_it_is_said_that_nothing_is_shared(tmp_path: Path, verb: str, train: str, end: str) -> None:
    result = call(verb, str(written(tmp_path, train, algorithm="none")))
    assert result.exit_code == 0, result.exception
    sentence = "computation is held to 10 ms a step in all: no algorithm overlaps it layer by layer"
    assert f"{sentence}{end}\n" in result.stdout


def test_a_plan_for_virtual_time_measures_nothing(tmp_path: Path) -> None:
    path = str(written(tmp_path, "pace: 5 ms"))
    result = call("plan", path, "--fabric", "sim")
    assert "held to 5 ms a step, shared among layers the same for every layer" in result.stdout
    found = json.loads(call("plan", path, "--fabric", "sim", "--json").stdout)
    assert found["pacing"]["source"] == "constant"


def test_the_command_measures_a_scenarios_model(tmp_path: Path) -> None:
    out = tmp_path / "measured.json"
    scenario = str(written(tmp_path, "model: mlp, batch: 4"))
    result = call("profile", scenario, "--passes", "3", "--out", str(out))
    assert result.exit_code == 0, result.exception
    found = read_profile(out)
    assert (found.source, found.model, found.batch) == ("measured", "mlp", 4)
    assert [(one.name, one.parameters) for one in found.layers] == [("1", 8320), ("3", 1290)]
    assert f"written to {out}" in result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:2] for line in lines if len(line) == 5 and line[4].endswith("%")] == [
        ["1", "8320"], ["3", "1290"], ["all", "9610"],
    ]  # fmt: skip
    again = written(tmp_path, "model: mlp, batch: 4, profile: measured.json")
    assert profile_of(job(again), ["1", "3"], never) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("stale", [None, "{}", json.dumps({**OWN, "batch": 7})])
def test_the_command_makes_the_file_that_its_scenario_names(
    tmp_path: Path, stale: str | None
) -> None:
    path = written(tmp_path, "model: mlp, batch: 4, profile: new/mine.json")
    mine = tmp_path / "new" / "mine.json"
    if stale is not None:
        mine.parent.mkdir()
        mine.write_text(stale)
    with pytest.raises(InputError, match=r"mine\.json|of batch 7"):
        load(path)
    result = call("profile", str(path), "--passes", "3", "--out", str(mine))
    assert result.exit_code == 0, result.exception
    assert load(path).profile == read_profile(mine)


@pytest.mark.parametrize("more", ["slow: {worker-0: 2}", "paces: {worker-0: 300 ms}"])
def test_the_command_makes_a_file_that_is_the_pace_of_the_others(tmp_path: Path, more: str) -> None:
    path = written(tmp_path, f"model: mlp, batch: 4, profile: mine.json, {more}")
    mine = tmp_path / "mine.json"
    result = call("profile", str(path), "--passes", "3", "--out", str(mine))
    assert result.exit_code == 0, result.exception
    assert load(path).profile == read_profile(mine)
    without = written(tmp_path, f"model: mlp, batch: 4, profile: measured, {more}")
    said = str(call("profile", str(without), "--passes", "3", "--out", str(mine)).exception)
    assert "give the others a time as well" in said


def test_the_command_estimates_and_prints_what_it_would_write() -> None:
    result = call(
        "profile", "--model", "resnet18", "--task", "cifar10", "--estimate", "v100", "--json"
    )
    assert result.exit_code == 0, result.exception
    assert ProfileFile.model_validate_json(result.stdout) == read_profile(
        shipped()["v100-resnet18"]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "tpu"), "--device: unknown device 'tpu'"),
        (("--estimate", "h900"), "--estimate: unknown accelerator 'h900'"),
        (("--model", "lstm"), "unknown model 'lstm'"),
        (("--out", "/proc/none/p.json", "--passes", "1"), "/proc/none/p.json: cannot be written"),
    ],
)
def test_the_command_refuses(arguments: tuple[str, ...], message: str) -> None:
    error = call("profile", *arguments).exception
    assert isinstance(error, InputError)
    assert message in str(error)
