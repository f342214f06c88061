"""Pages of the papers: made anew from the numbers beside them, and the command that makes both."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from command_here import carried_out_in

from analysis.papers import Results, between_marks, condensed, gpu_setup
from testbed.bench.replicate import (
    PAGE,
    PLAN,
    PagePart,
    Replication,
    family_courses,
    parts,
    read,
    sections,
    write_figures,
    write_page,
)
from testbed.compatibility import resolve
from testbed.control.base import controllers
from testbed.control.delay_aware import drawn_settings
from testbed.errors import InputError
from testbed.runner.run import side_by_side
from testbed.scenario.load import load
from testbed.training.models.base import models
from testbed.training.tasks.base import tasks
from testbed.training.worker import Stopping

FOLDER = Path(__file__).parents[2] / "scenarios" / "papers"
PAPERS = sorted(path.parent for path in FOLDER.glob("*/small.json"))
SCENARIO = """
name: tiny
nodes: {server: {role: server}, worker: {role: worker, count: 2}}
links: {default: {up: {rate: 100 Mbit/s, queue: 10 ms}, down: {rate: 100 Mbit/s, queue: 10 ms}}}
train: {task: digits, model: mlp, width: 0.1, batch: 8, pace: 10 ms, stop: {steps: 4}, evaluate_every: 2}
algorithms: [none, laplace-0.1]
seeds: [1]
"""
PLANNED = """
[[small.parts]]
name = "a"
scenario = "scenario.yaml"
seeds = "1-2"

[[small.parts]]
name = "b"
group = "a"
scenario = "scenario.yaml"
algorithms = ["radix-0.1"]
seeds = "3"
remove = ["train.pace"]
change = {train = {batch = 4}}
"""


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "scenario.yaml").write_text(SCENARIO)
    (folder / PLAN).write_text(PLANNED)
    return folder


@pytest.mark.parametrize("folder", PAPERS, ids=lambda path: path.name)
def test_the_page_is_made_of_the_numbers_beside_it(folder: Path) -> None:
    results = read(folder / "small.json")
    text = (folder / PAGE).read_text("utf-8")
    assert between_marks(text, sections(folder, results)) == text


def test_page_of_the_gpu_is_made_of_the_numbers_beside_it() -> None:
    folder = FOLDER / "adatopk"
    if not (folder / "gpu.json").exists():
        pytest.skip("the runs on a GPU were not made yet")
    made = sections(folder, read(folder / "gpu.json"))
    text = (folder / "gpu.md").read_text("utf-8")
    assert text == "\n\n".join(["# adatopk: size gpu", *made.values()]) + "\n"


def test_page_of_the_family_is_made_of_the_numbers_beside_it() -> None:
    folder = FOLDER / "adatopk"
    made = sections(folder, read(folder / "family.json"))
    text = (folder / "family.md").read_text("utf-8")
    assert text == "\n\n".join(["# adatopk: size family", *made.values()]) + "\n"
    assert "| mean k: dc2-da5 below dc2-da4 | yes | 173 of 200 |" in text


@pytest.mark.parametrize("folder", PAPERS, ids=lambda path: path.name)
def test_the_numbers_are_those_of_the_plan(folder: Path, tmp_path: Path) -> None:
    results = read(folder / "small.json")
    planned: dict[str, list[tuple[str, int]]] = {}
    for part, task in Replication(folder, "small", tmp_path).tasks():
        planned.setdefault(part.group, []).append((task.algorithm, task.seed))
    assert planned == {
        group: [(run["algorithm"], run["seed"]) for run in runs]
        for group, runs in results.groups.items()
    }
    for run in (run for runs in results.groups.values() for run in runs):
        assert run["verdict"] == "valid"
        assert run["run"] and run["scenario_hash"] and run["commit"]


def made_up(part: PagePart, algorithm: str, seed: int) -> dict[str, Any]:
    """A record as a run's is: it reaches every accuracy at the fifth of ten evaluations."""
    random = Random(f"{part.name} {algorithm} {seed}")
    step_s = 0.1 + random.random()
    return {
        "algorithm": algorithm, "seed": seed, "verdict": "valid", "time_s": 100 * step_s, "step_s": step_s,
        "accuracy": random.random(), "mean_k": 0.1, "bytes_up": 1e6, "bytes_down": 2e6, "steps": 100, "every": 4,
        "density": [0.29 - 0.01 * number for number in range(25)], "train": [0.04 * number for number in range(25)],
        "evaluations": [[10 * n, 10 * n * step_s, 0.2 * n] for n in range(1, 11)],
        "fits": [[step, "layer", 1000, 0.4, 0.8 + random.random()] for step in (1, 11)],
    }  # fmt: skip


def all_made_up(asked: Replication) -> Results:
    """Records of all runs of a size, and its measurements."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for part, task in asked.tasks():
        groups.setdefault(part.group, []).append(made_up(part, task.algorithm, task.seed))
    measured = {
        part.name: [
            {"method": name, "seconds": [0.1 + number, 0.2], "density": 0.01}
            for number, name in enumerate(part.algorithms)
        ]
        for part in asked.parts
        if part.measure
    }
    return Results(groups, measured)


@pytest.mark.parametrize(
    "plan", sorted(FOLDER.glob(f"*/{PLAN}")), ids=lambda path: path.parent.name
)
def test_a_page_has_its_claims_tables_and_marks(plan: Path, tmp_path: Path) -> None:
    results = all_made_up(Replication(plan.parent, "small", tmp_path))
    made = sections(plan.parent, results)
    text = between_marks((plan.parent / PAGE).read_text("utf-8"), made)
    assert all(each.startswith("| ") and each.count("\n| ") > 1 for each in made.values())
    claims = [line.rsplit("|", 2)[1].strip(" *") for line in made["claims"].splitlines()[2:]]
    assert set(claims) <= {"holds", "does not", "not supported", "by construction"}
    assert text.count("<!-- end ") == len(made)
    folder = tmp_path / plan.parent.name
    folder.mkdir()
    drawn = {path.name for path in write_figures(folder, results)}
    assert drawn == set(re.findall(r"\]\((fig\d+\.png)\)", "".join(made.values())))
    for name in drawn:
        assert 10_000 < (folder / name).stat().st_size < 150_000, name


@pytest.mark.parametrize(
    ("name", "group", "algorithm"),
    [
        ("adatopk", "dynamic", "none"),
        ("cssgd", "dnn-n4-same", "none"),
        ("algc", "residuals", "algc"),
    ],
)
def test_a_page_pairs_runs_by_seed_where_one_is_invalid(
    name: str, group: str, algorithm: str, tmp_path: Path
) -> None:
    results = all_made_up(Replication(FOLDER / name, "small", tmp_path))
    runs = [{**run, "seed": run["seed"] + n} for run in results.groups[group] for n in (0, 10)]
    lost = next(run for run in runs if run["algorithm"] == algorithm)
    lost["verdict"] = "invalid"
    made = sections(FOLDER / name, Results({**results.groups, group: runs}, results.measured))
    assert made["claims"].count("\n| ") > 1


@pytest.mark.parametrize(
    "plan", sorted(FOLDER.glob(f"*/{PLAN}")), ids=lambda path: path.parent.name
)
def test_a_page_of_the_full_size_has_all_runs(plan: Path, tmp_path: Path) -> None:
    results = all_made_up(Replication(plan.parent, "full", tmp_path / "runs", data=tmp_path))
    folder = tmp_path / plan.parent.name
    folder.mkdir()
    _, page = write_page(folder, "full", results)
    text = page.read_text("utf-8")
    for group, records in results.groups.items():
        own = text.partition(f"## {group}\n")[2].partition("\n## ")[0] or text
        assert {f"| `{each['algorithm']}` |" for each in records} <= set(
            re.findall(r"^\| `[^`]+` \|", own, re.MULTILINE)
        )


def test_settings_of_the_family_differ_are_valid_and_stay_the_same() -> None:
    drawn = [drawn_settings(number) for number in range(1, 201)]
    assert drawn == [drawn_settings(number) for number in range(1, 201)]
    for name in ("dc2-da2", "dc2-da4", "dc2-da5"):
        assert len({str(each[name]) for each in drawn}) == 200
        for each in drawn:
            controllers.get(name)(seed=1, **each[name])
    assert all(each["dc2-da4"]["down_above"] > each["dc2-da5"]["down_above"] for each in drawn)
    ours = [controllers.get(name)(seed=1).options for name in ("dc2-da2", "dc2-da4", "dc2-da5")]
    for option in ("k_max", "k_min", "warm_up", "window", "tolerance", "factor", "rises", "levels"):
        values = [each[name][option] for each in drawn for name in each if option in each[name]]
        own = [getattr(each, option) for each in ours if hasattr(each, option)]
        assert min(values) < own[0] < max(values), f"{option}: our own setting is inside"


def test_a_plan_has_settings_of_the_family_each_with_one_seed(paper: Path, tmp_path: Path) -> None:
    (paper / PLAN).write_text(
        "[[small.parts]]\nname = 'a'\nscenario = 'scenario.yaml'\nsettings = 3\nseeds = '1-2'\n"
        "algorithms = ['dc2-da4', 'dc2-da5']\n"
    )
    asked = Replication(paper, "small", tmp_path / "out")
    listed = [(task.algorithm, task.seed) for _, task in asked.tasks()]
    assert listed == [
        ("dc2-da4-1", 1), ("dc2-da5-1", 1), ("dc2-da4-2", 2), ("dc2-da5-2", 2), ("dc2-da4-3", 1), ("dc2-da5-3", 1),
    ]  # fmt: skip
    alone = Replication(paper, "small", tmp_path / "out", algorithms=["dc2-da4-2"])
    assert [(task.algorithm, task.seed) for _, task in alone.tasks()] == [("dc2-da4-2", 2)]
    records = asked.run(lambda _: None).groups["a"]
    largest = [drawn_settings(number)["dc2-da4"]["k_max"] for number in (1, 1, 2, 2, 3, 3)]
    assert [each["mean_k"] for each in records] == pytest.approx(largest)  # all warm-up
    assert set(records[0]) == {
        "algorithm", "seed", "verdict", "time_s", "accuracy", "mean_k", "commit", "decline",
    }  # fmt: skip


def test_orderings_of_the_family_are_counted_over_its_settings(tmp_path: Path) -> None:
    def one(name: str, seed: int, time_s: float, mean_k: float, accuracy: float) -> dict[str, Any]:
        return {
            "algorithm": name, "seed": seed, "verdict": "valid", "time_s": time_s, "mean_k": mean_k,
            "accuracy": accuracy, "decline": mean_k,
        }  # fmt: skip

    family = [
        record
        for number in range(1, 21)
        for seed in (1 + number % 2,)
        for record in (
            one(f"dc2-da2-{number}", seed, 1.0, 0.1, 0.5),
            one(f"dc2-da4-{number}", seed, 2.0, 0.3, 0.5 + (number > 2) / 10),
            one(f"dc2-da5-{number}", seed, 1.5 + (number == 20), 0.2, 0.4),
        )
    ]
    beside = [
        one(name, seed, 1.2, 0.2, 0.6)
        for name in ("none", "topk-0.15", "adatopk")
        for seed in (1, 2)
    ]
    model = [
        {"setting": number, "rule": f"dc2-da{rule}", "mean_k": k, "decline": k, "time_s": 1.0 + k}
        for number in range(41)
        for rule, k in ((2, 0.1), (4, 0.1 if number in (0, 1) else 0.3), (5, 0.2))
    ]
    results = Results({"family": family, "beside": beside}, {"model": model})
    made = sections(FOLDER / "adatopk", results)
    rows = {
        cells[0]: cells[1:]
        for line in made["orderings"].splitlines()[2:]
        for cells in ([cell.strip(" *") for cell in line.strip("|").split("|")],)
    }
    assert rows["mean k: dc2-da5 below dc2-da4"] == ["yes", "39 of 40", "20 of 20", "robust"]
    assert rows["time: dc2-da5 below dc2-da4"] == ["yes", "39 of 40", "19 of 20", "robust"]
    below = "accuracy: dc2-da2 below"
    assert rows[f"{below} dc2-da4"] == ["yes", "–", "18 of 20", "hangs on constants"]
    assert rows[f"{below} dc2-da5"] == ["yes", "–", "0 of 20", "reversed"]
    assert rows[f"{below} adatopk"][0] == "yes"
    assert rows["time: adatopk below dc2-da2"] == ["–", "–", "0 of 20", "reversed"]
    assert "| `dc2-da2` | 20 | +10.0% [+10.0%, +10.0%] | 10.0% |" in made["apart"]


def test_model_of_a_step_waits_for_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "flat.csv").write_text("time_s,rate_mbit_s\n0,80\n")
    part = PagePart(
        "a", "a", None, "family", ("dc2-da4", "dc2-da5"), (1, 2),
        {
            "trace": "flat.csv", "steps": 100, "offset_s": 0, "workers": 2, "computation_s": 0.1, "selection_s": 0.02,
            "other_s": 0.003, "on_wire": 1.0, "noise": 0.0, "up": [[0.001, 1e3], [1.0, 1e6]],
            "down": [[0.001, 1e3], [1.0, 1e6]],
        },
        (), settings=2,
    )  # fmt: skip
    rows = family_courses(part, tmp_path, lambda _: None)
    assert [(row["setting"], row["rule"]) for row in rows] == [
        (number, rule) for number in range(3) for rule in ("dc2-da4", "dc2-da5")
    ]
    own = rows[
        0
    ]  # equal delays: neither threshold is passed, k stays at 0.29, which sends 290,000 bytes each way
    assert own["mean_k"] == pytest.approx(0.29) and own["decline"] == 0.0
    assert own["time_s"] == pytest.approx(100 * (0.123 + 8 * 2 * 2 * 290e3 / 80e6), rel=1e-4)


def test_runs_of_a_plan_go_on_where_they_were(paper: Path, tmp_path: Path) -> None:
    said: list[str] = []
    asked = Replication(paper, "small", tmp_path / "out")
    listed = [(part.name, task.algorithm, task.seed) for part, task in asked.tasks()]
    assert listed == [
        ("a", "none", 1), ("a", "none", 2), ("a", "laplace-0.1", 1), ("a", "laplace-0.1", 2), ("b", "radix-0.1", 3),
    ]  # fmt: skip
    results = asked.run(said.append)
    assert [(r["algorithm"], r["seed"], r["steps"]) for r in results.groups["a"]] == [
        (name, seed, 4) for _, name, seed in listed
    ]
    assert results.groups["a"][0]["evaluations"][-1][0] == 4
    assert results.runs("a").values("laplace-0.1", "mean_k") == {1: 0.1, 2: 0.1}
    said.clear()
    again = Replication(paper, "small", tmp_path / "out").run(said.append)
    assert said[0] == "tiny: 5 runs, of which 0 are left"
    assert again == results
    on_links = Replication(paper, "small", tmp_path / "out", fabric="netns")
    assert len(on_links.left(list(on_links.tasks()))) == 5, "these were in virtual time"
    finished = tmp_path / "out" / "finished.jsonl"
    *whole, last = finished.read_text().splitlines(keepends=True)
    finished.write_text("".join(whole) + last[:10])  # as a kill leaves it
    said.clear()
    records = Replication(paper, "small", tmp_path / "out").run(said.append).groups["a"]
    assert said[0] == "tiny: 5 runs, of which 1 are left"
    assert [(r["algorithm"], r["seed"]) for r in records] == [each[1:] for each in listed]


def test_first_steps_do_not_count_where_a_part_says_so(paper: Path, tmp_path: Path) -> None:
    text = PLANNED.replace('seeds = "1-2"', 'seeds = "1"\nskip = 3')
    (paper / PLAN).write_text(text)
    results = Replication(paper, "small", tmp_path / "out").run(lambda _: None)
    first, second, other = results.groups["a"]
    for record in (first, second):
        assert (record["skip"], record["fabric"], len(record["lengths_s"])) == (3, "sim", 4)
        assert record["step_s"] == record["lengths_s"][3]
    assert "skip" not in other and "lengths_s" not in other


def on_a_gpu(algorithm: str, step_s: float, verdict: str = "valid") -> dict[str, Any]:
    return {
        "algorithm": algorithm, "seed": 1, "verdict": verdict, "step_s": step_s, "skip": 2, "fabric": "netns",
        "lengths_s": [9.0, 8.0, step_s], "bytes_up": 1e6, "bytes_down": 2.5e6, "commit": "0123456789abcdef",
    }  # fmt: skip


def test_table_1_has_what_was_measured_on_a_gpu(tmp_path: Path) -> None:
    plain = FOLDER / "adatopk"
    device = {"device": "Accelerator X", "cuda": "13.0", "date": "2026-11-26"}
    groups = {
        f"static-{model}": [
            on_a_gpu("none", 2.0),
            on_a_gpu("topk-0.15", 1.0, "invalid" if model == "vgg19" else "valid"),
            on_a_gpu("topk-0.001", 0.25, "degraded"),
        ]
        for model in ("resnet18", "vgg19", "resnet34", "resnet50")
    }
    folder = tmp_path / "adatopk"
    folder.mkdir()
    numbers, page = write_page(folder, "gpu", Results(groups, {"device": [device]}))
    assert numbers.name == "gpu.json" and page.name == "gpu.md"
    lines = page.read_text("utf-8").splitlines()
    assert "| static-vgg19 | `topk-0.15` | invalid | 1 | – | 9, 8, 1 | 1 / 2.5 |" in lines
    assert (
        "| static-resnet50 | `topk-0.001` | degraded | 0.25 | 8.00 (degraded) | 9, 8, 0.25 | 1 / 2.5 |"
        in lines
    )
    small: dict[str, list[dict[str, Any]]] = {}
    for part, task in Replication(plain, "small", tmp_path).tasks():
        small.setdefault(part.group, []).append(made_up(part, task.algorithm, task.seed))
    numbers.unlink()
    (folder / PAGE).write_text((plain / PAGE).read_text("utf-8"))
    write_page(folder, "small", Results(small))
    assert "GPU" not in between((folder / PAGE).read_text("utf-8"), "static")
    *_, page = write_page(folder, "gpu", Results(groups, {"device": [device]}))
    modelled = {name: [{**run, "fabric": "sim"} for run in runs] for name, runs in groups.items()}
    assert "links modelled" in gpu_setup(Results(modelled, {"device": [device]}))
    made = sections(folder, Results(small))["static"]
    assert page.name == PAGE and made == between(page.read_text("utf-8"), "static")
    cells = {line.split(" | ")[0]: line.strip("| ").split(" | ")[-2:] for line in made.splitlines()}
    assert cells["| share of"] == ["k = 0.15, measured on a GPU", "k = 0.001, measured on a GPU"]
    assert cells["| resnet18"] == ["2.00", "8.00 (degraded)"]
    assert cells["| vgg19"] == ["–", "8.00 (degraded)"]
    assert (
        "one Accelerator X for all workers, fabric `netns`, 2026-11-26, commit 0123456789" in made
    )


def between(text: str, name: str) -> str:
    """A section of a page."""
    return text.partition(f"<!-- {name} -->")[2].partition(f"<!-- end {name} -->")[0].strip()


def test_the_size_on_a_gpu_has_four_models_and_their_dense_steps(tmp_path: Path) -> None:
    asked = Replication(FOLDER / "adatopk", "gpu", tmp_path)
    for part, task in asked.tasks():
        loaded = load(task.source)
        (workers,) = [node for node in loaded.scenario.nodes.values() if node.role == "worker"]
        train = loaded.scenario.train
        assert (workers.count, workers.device, train.pace, train.batch) == (4, "cuda", None, 32)
        assert f"static-{train.model}" == f"{part.group}-bn"
        assert train.stop.steps is not None and train.stop.steps >= part.skip + 3
    assert len(asked.parts) == 5


def test_a_change_is_laid_over_the_scenario(paper: Path, tmp_path: Path) -> None:
    asked = Replication(paper, "small", tmp_path / "out", data=tmp_path, epochs=2, seeds=[7])
    tasks = {part.name: task for part, task in asked.tasks()}
    changed, plain = (load(tasks[name].source).scenario.train for name in ("b", "a"))
    assert (changed.batch, plain.batch, changed.model) == (4, 8, "mlp")
    assert changed.pace is None and plain.pace is not None
    assert (changed.stop.epochs, changed.data) == (2, str(tmp_path))
    assert tasks["b"].seed == 7
    assert not asked.whole


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        ("[[small.parts]]\nname = 'a'\n", "a scenario or a measurement"),
        ("[[small.parts]]\nname = 'a'\nscenario = 's'\nsteps = 3\n", "unknown steps"),
        ("[[full.parts]]\n", "no size 'small'"),
        ("[", "replication.toml"),
    ],
)  # fmt: skip
def test_a_plan_that_is_none_is_refused(plan: str, error: str, paper: Path) -> None:
    (paper / PLAN).write_text(plan)
    with pytest.raises(InputError, match=error):
        parts(paper, "small")


def test_full_is_planned_by_the_command(paper: Path, tmp_path: Path) -> None:
    (paper / PLAN).write_text(PLANNED.replace("small", "full"))
    printed = carried_out_in(
        tmp_path, "bench", "replicate", str(paper), "--size", "full", "--plan", "--out", "out"
    )
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.splitlines()[-1] == "b radix-0.1 3"


def test_pages_of_both_sizes_are_written(tmp_path: Path) -> None:
    plain = FOLDER / "laplacian-threshold"
    folder = tmp_path / plain.name
    folder.mkdir()
    results = read(plain / "small.json")
    (folder / PAGE).write_text(
        (plain / PAGE).read_text("utf-8").replace("| `laplace` |", "| gone |")
    )
    write_page(folder, "small", results)
    assert (folder / PAGE).read_text("utf-8") == (plain / PAGE).read_text("utf-8")
    content = json.loads((folder / "small.json").read_text())
    assert content["groups"] == results.groups and set(content["machine"]) == {
        "versions",
        "architecture",
        "cpu",
        "commit",
    }
    _, page = write_page(folder, "full", results)
    assert page.read_text("utf-8").startswith("# laplacian-threshold: size full")


@pytest.mark.parametrize(
    "plan", sorted(FOLDER.glob(f"*/{PLAN}")), ids=lambda path: path.parent.name
)
def test_the_full_size_ends_by_its_epochs(plan: Path, tmp_path: Path) -> None:
    for part, task in Replication(plan.parent, "full", tmp_path, seeds=[1]).tasks():
        scenario = load(task.source).scenario
        stop, (workers,) = (
            scenario.train.stop,
            [n for n in scenario.nodes.values() if n.role == "worker"],
        )
        per_epoch = 50_000 // (scenario.train.batch * workers.count)
        assert stop.epochs and Stopping(stop, per_epoch).limit == stop.epochs * per_epoch, part.name


def cifar_files(folder: Path) -> None:
    """CIFAR-10 and CIFAR-100 in their binary form, of two classes: 130 random images, 26 to test on."""
    random, batches = np.random.default_rng(1), [f"data_batch_{n}.bin" for n in range(1, 6)]
    for name, label_bytes, files in (
        ("cifar-10-batches-bin", 1, [*batches, "test_batch.bin"]),
        ("cifar-100-binary", 2, ["train.bin", "test.bin"]),
    ):
        (folder / name).mkdir()
        for file in files:
            count = 130 if file == "train.bin" else 26
            records = random.integers(0, 256, (count, label_bytes + 3072), dtype=np.uint8)
            records[:, :label_bytes] %= 2
            (folder / name / file).write_bytes(records.tobytes())


@pytest.mark.parametrize(
    ("paper_name", "part_name", "algorithm", "steps"),
    [
        ("cssgd", "cnn-n2", "ssgd-multicast", 4),
        # the daily form is the one above, of a small model
        pytest.param("adatopk", "dynamic-resnet18", "adatopk", 2, marks=pytest.mark.nightly),
        pytest.param("algc", "factorial", "algc", 2, marks=pytest.mark.nightly),
        pytest.param("laplacian-threshold", "cifar100", "laplace-0.01", 2, marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_full_size_trains_on_files_of_cifars_format(
    paper_name: str, part_name: str, algorithm: str, steps: int, tmp_path: Path
) -> None:
    cifar_files(tmp_path)
    asked = Replication(
        FOLDER / paper_name,
        "full",
        tmp_path / "out",
        data=tmp_path,
        algorithms=[algorithm],
        epochs=2,
        seeds=[1],
    )
    (task,) = [task for part, task in asked.tasks() if part.name == part_name]
    text = task.source.read_text("utf-8")
    task.source.write_text(text.replace('"device": "cuda"', '"device": "cpu"'))
    (done,) = side_by_side([task], tmp_path, 1)
    record = condensed(Path(done.entry["dir"]))
    assert (record["algorithm"], record["steps"]) == (algorithm, steps)
    assert record["evaluations"][-1][0] == steps


def test_everything_that_the_papers_name_is_where_it_is_said_to_be() -> None:
    root = FOLDER.parents[1]
    known = {*models, *tasks}
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split(" |")][:3]
        for line in (root / "docs" / "papers.md").read_text("utf-8").splitlines()
        if line.startswith("| ") and not line.startswith(("| ---", "| in the paper"))
    ]
    assert len(rows) > 60 and all(len(row) == 3 for row in rows)
    for item, where, why in rows:
        if where == "–":
            assert len(why) > 5, f"{item}: no reason"
            continue
        for name in re.findall("`([^`]+)`", where):
            if "/" in name:
                assert (root / name).is_file(), f"{item}: {name}"
            elif name not in known:
                assert resolve(name).name == name, f"{item}: {name}"
