"""The page on ALGC's parts: times and steps to an accuracy from records, and tables and figure made of them."""

from __future__ import annotations

import json
from csv import DictReader
from math import prod
from pathlib import Path
from typing import Any

import pytest

from analysis.papers import Results, Runs, above
from analysis.papers.algc import (
    ACCURACY,
    FACTORS,
    FIXED,
    MEASURES,
    algorithm,
    cells,
    main,
    measures,
    residuals_table,
    sections,
)
from testbed.scenario.load import load

SCENARIO = Path(__file__).parents[2] / "scenarios" / "papers" / "algc" / "scenario.yaml"
DILATION = 10.0
STEP_S = {"threshold": 0.9, "layer-wise": 1.1, "overlap": 0.5}
"""What each part multiplies a step's time by, in the runs below; layer-wise also halves their number."""


def written(
    folder: Path, name: str, seed: int, step_s: float, steps: int, best: float = 1.0
) -> dict[str, str]:
    """A run as it lies on disk, which reaches 0.93 at ``steps``, and falls below it again; never more than ``best``."""
    run = folder / f"{name}-{seed}"
    (run / "events").mkdir(parents=True)
    accuracies = {steps // 2: 0.5, steps: ACCURACY, 2 * steps: 0.92, 3 * steps: 0.97}
    events = [
        {"kind": "evaluation", "step": step, "time_s": step * step_s * DILATION, "accuracy": min(accuracy, best)}
        for step, accuracy in accuracies.items()
    ]  # fmt: skip
    (run / "events" / "server.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    (run / "manifest.json").write_text(
        json.dumps({"dilation": DILATION, "scenario_hash": "0", "machine": {"commit": None}})
    )
    summary = {
        "algorithm": name, "seed": seed, "verdict": "valid", "dir": str(run), "accuracy": 0.97,
        "time_s": 3 * steps * step_s, "step_s": step_s, "mean_k": 0.1, "bytes_up": 2e6, "bytes_down": 3e6,
    }  # fmt: skip
    (run / "summary.json").write_text(json.dumps(summary))
    return {"dir": str(run)}


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    entries = []
    for seed in (1, 2):
        for cell in cells(FACTORS):
            step_s = 0.02 * seed * prod(STEP_S[factor] for factor in cell)
            steps = 50 if "layer-wise" in cell else 100
            entries.append(written(tmp_path, algorithm(cell), seed, step_s, steps))
        entries.append(written(tmp_path, "none", seed, 0.04 * seed, 90))
        entries.append(written(tmp_path, "lgreco", seed, 0.02 * seed, 100, best=0.9))
        for number, name in enumerate(FIXED):
            entries.append(written(tmp_path, name, seed, 0.02 * seed, 100 - 10 * number))
    (tmp_path / "comparison.json").write_text(json.dumps({"runs": entries}))
    return tmp_path


def test_the_scenario_has_every_cell_and_its_parts_are_what_the_names_say() -> None:
    given = {a if isinstance(a, str) else a.name: a for a in load(SCENARIO).scenario.algorithms}
    for cell in cells(FACTORS):
        entry = given[algorithm(cell)]
        off = set(FACTORS) - cell
        if isinstance(entry, str):
            assert not off
            continue
        assert entry.from_ == "algc"
        options = {"threshold": "threshold", "layer-wise": "layerwise"}
        assert entry.controller == {options[f]: False for f in FACTORS if f in off and f in options}
        assert entry.overlap is (False if "overlap" in off else None)
    assert set(FIXED) < set(given)


def test_time_and_steps_to_an_accuracy_are_those_of_its_first_reading(comparison: Path) -> None:
    runs = Runs.read(comparison)
    assert runs.reached("none", ACCURACY) == {
        1: (pytest.approx(3.6), 90), 2: (pytest.approx(7.2), 90),
    }  # fmt: skip
    assert runs.reached("none", 0.95) == {
        1: (pytest.approx(10.8), 270), 2: (pytest.approx(21.6), 270),
    }  # fmt: skip
    assert runs.reached("none", 0.98) == {}
    sooner = runs.sooner("algc", "none", ACCURACY)
    expected = 1 - 50 * 0.02 * 0.9 * 1.1 * 0.5 / 3.6
    assert (sooner.mean, sooner.low, sooner.high) == pytest.approx((expected,) * 3)
    assert above(sooner) == "holds"
    assert runs.sooner("algc", "none", 0.98).mean is None


def test_the_time_is_steps_times_a_steps_time(comparison: Path) -> None:
    time, steps, step_s = (measures(Runs.read(comparison))[name] for name in MEASURES)
    for cell in cells(FACTORS):
        assert set(time[cell]) == {1, 2}
        for seed in (1, 2):
            assert time[cell][seed] == pytest.approx(steps[cell][seed] * step_s[cell][seed])


def test_the_page_tells_what_the_parts_do(comparison: Path, tmp_path: Path) -> None:
    text = main(comparison, tmp_path / "out").splitlines()
    tables = [row for row in text if row.startswith("|")]
    line = {row.split("|")[1].strip(): row for row in reversed(tables)}  # the first of each name
    alone = next(row for row in reversed(tables) if row.startswith("| overlap |"))
    assert alone.count("**0.500 [0.500, 0.500]**") == 2
    assert "0.900" in line["threshold"] and "0.500" in line["overlap"]
    one, steps, step = (cell.strip(" *") for cell in line["layer-wise"].split("|")[2:5])
    assert (one[:5], steps[:5], step[:5]) == ("0.550", "0.500", "1.100")
    assert "1.000" in line["threshold × layer-wise × overlap"]
    assert "*2 seeds with all eight*" in text
    best = f"ALGC is sooner at 93 % than {FIXED[-1]} (the best fixed density)"
    assert "**holds**" in line[best]
    assert line["`none`"].split("|")[2:5] == [" 5.40 [-17.47, 28.27] ", " 2 of 2 ", " 90 "]
    assert line["`lgreco`"].split("|")[2:5] == [" – [–, –] ", " 0 of 2 ", " – "]


def test_the_figure_has_every_effect_and_every_cell(comparison: Path, tmp_path: Path) -> None:
    main(comparison, tmp_path / "out")
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".png", ".pdf", ".csv"}
    with (tmp_path / "out" / "factorial.csv").open() as file:
        rows = list(DictReader(file))
    kinds = [row["kind"] for row in rows]
    assert (kinds.count("effect"), kinds.count("cell")) == (3 * 7, 8)
    overlap = next(r for r in rows if r["of"] == "overlap" and r["kind"] == "effect")
    assert float(overlap["mean"]) == pytest.approx(0.5)
    alone = next(r for r in rows if r["of"] == "none of them")
    assert float(alone["mean"]) == pytest.approx(100 * 0.02 * 2**0.5)


def of_a_length(
    name: str, seed: int, step_s: float, bytes_up: float, accuracy: float
) -> dict[str, Any]:
    """A record that reaches the accuracy at step 100 of 200."""
    return {
        "algorithm": name, "seed": seed, "verdict": "valid", "step_s": step_s, "mean_k": 0.1, "accuracy": accuracy,
        "bytes_up": bytes_up, "bytes_down": 2e6, "train": [0.1, 0.8, 0.9, 1.0],
        "evaluations": [[100, 100 * step_s, ACCURACY], [200, 200 * step_s, accuracy]],
    }  # fmt: skip


def test_residuals_at_the_server_are_held_against_none_by_seed(comparison: Path) -> None:
    beside = [
        of_a_length(*each)
        for seed in (1, 2)
        for each in (
            ("algc", seed, 0.02 * seed, 4e6, 0.96),
            ("algc-residuals", seed, 0.025 * seed, 5e6, 0.95),
        )
    ]
    lines = residuals_table(Runs(beside)).splitlines()
    assert "| time to 93% (s) | 3 | 3.75 | **1.250 [1.250, 1.250]** |" in lines
    assert "| steps to it | 100 | 100 | 1.000 [1.000, 1.000] |" in lines
    assert "| MB up | 4.0 | 5.0 | **1.250 [1.250, 1.250]** |" in lines
    assert "| training accuracy at the end | 90.0% | 90.0% | 1.000 [1.000, 1.000] |" in lines
    runs = [
        {**each, "train": []}
        for name in Runs.read(comparison).names()
        for each in Runs.read(comparison).of(name)
    ]
    alone, both = (
        sections(Results({"factorial": runs, **groups}))["claims"].splitlines()
        for groups in ({}, {"residuals": beside})
    )
    assert len(both) == len(alone) + 3
    verdicts = [line.rsplit("|", 2)[1].strip(" *") for line in both[-3:]]
    assert verdicts == ["does not", "does not", "does not"]
