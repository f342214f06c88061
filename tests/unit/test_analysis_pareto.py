"""The figure of time against accuracy: what is plotted, and when it is drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.collections import LineCollection
from matplotlib.patches import FancyArrowPatch
from synthetic_run import Recipe, make_run

from analysis.figures import figures_of
from analysis.figures.algorithms import front, pareto
from analysis.load import Run, by_algorithm, load_all
from analysis.style import look
from testbed.fidelity.verdict import Verdict

DENSITIES = (0.003, 0.03, 0.3)
WRONG = Verdict("invalid", ["because"])


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("out")
    recipes = [Recipe(f"topk-{k:g}", k, seed, 30) for k in DENSITIES for seed in (1, 2, 3)]
    recipes += [Recipe("none", 1.0, 1, 30), Recipe("adatopk", None, 1, 30)]
    return [make_run(out, each) for each in [*recipes, Recipe("none", 1.0, 2, 5, verdict=WRONG)]]


@pytest.fixture(scope="module")
def runs(paths: list[Path]) -> list[Run]:
    return load_all(paths)


def test_the_front_is_of_those_that_nothing_beats() -> None:
    points = [(3.0, 0.8), (1.0, 0.5), (2.0, 0.9), (2.0, 0.7), (4.0, 0.9), (5.0, 0.95)]
    assert front(points) == [(1.0, 0.5), (2.0, 0.9), (5.0, 0.95)]
    assert front([]) == []


def test_rows_are_means_over_seeds_with_intervals(runs: list[Run]) -> None:
    rows = {row["algorithm"]: row for row in pareto.data(runs)}
    assert set(rows) == {"none", "adatopk", *(f"topk-{k:g}" for k in DENSITIES)}
    sparse = [run.summary for run in runs if run.algorithm == "topk-0.003"]
    mean = sum(summary["time_s"] for summary in sparse) / 3
    found = rows["topk-0.003"]
    assert found["time_s"] == pytest.approx(mean)
    assert found["time_s_low"] < mean < found["time_s_high"]
    assert (found["density"], found["seeds"], found["on_front"]) == (0.003, 3, True)
    assert (rows["none"]["seeds"], rows["none"]["density"]) == (1, None)
    assert rows["none"]["time_s_low"] is None and not rows["adatopk"]["on_front"]
    fixed = [row for row in rows.values() if row["density"] is not None]
    for row in fixed:
        beaten = any(
            other["time_s"] <= row["time_s"] and other["accuracy"] >= row["accuracy"]
            for other in fixed
            if other is not row
        )
        assert row["on_front"] is not beaten


def test_it_takes_three_fixed_densities(runs: list[Run]) -> None:
    assert pareto in figures_of(runs)
    assert pareto not in figures_of([run for run in runs if run.algorithm != "topk-0.03"])


def test_the_figure_names_all(runs: list[Run]) -> None:
    figure = pareto.draw(runs)
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["Pareto front of fixed k", "none", "adatopk"]
    assert {text.get_text() for text in figure.axes[0].texts} == {"0.003", "0.03", "0.3"}


def test_no_accuracy_beyond_0_and_1_is_drawn(runs: list[Run]) -> None:
    """Two seeds that differ much have an interval that no accuracy can have."""
    accuracies = {1: 0.95, 2: 0.4, 3: 0.9}
    apart = [
        replace(run, summary={**run.summary, "accuracy": accuracies[run.seed]})
        for run in runs
        if run.seed < 3
    ]
    assert any(row["accuracy_high"] and row["accuracy_high"] > 1.5 for row in pareto.data(apart))
    (axes,) = pareto.draw(apart).axes
    low, high = axes.get_ylim()
    assert -0.05 <= low < 0 and 1 < high <= 1.05
    bars = [line for line in axes.collections if isinstance(line, LineCollection)]
    ends = [y for bar in bars for path in bar.get_paths() for y in path.vertices[:, 1]]
    assert min(ends) == 0.0 and max(ends) == 1.0


def test_a_line_leads_from_a_point_to_a_label_that_is_not_beside_it(runs: list[Run]) -> None:
    """Two densities that take as long: a label of theirs gives way."""
    times = {"topk-0.003": 1.0, "topk-0.03": 1.001, "topk-0.3": 1.002}
    accuracies = {"topk-0.003": 0.6, "topk-0.03": 0.601, "topk-0.3": 0.602}
    close = [
        replace(run, summary={**run.summary, "time_s": times[run.algorithm] + run.seed,
                              "accuracy": accuracies[run.algorithm] - run.seed / 10})
        for run in runs if run.algorithm in times
    ]  # fmt: skip
    (axes,) = pareto.draw(close).axes
    assert any(isinstance(patch, FancyArrowPatch) for patch in axes.patches)


def test_others_have_the_colour_that_they_have_elsewhere(runs: list[Run]) -> None:
    names = list(by_algorithm(runs))
    figure = pareto.draw(runs)
    drawn = {
        text.get_text(): line.get_color()
        for text, line in zip(
            figure.legends[0].get_texts(), figure.legends[0].get_lines(), strict=True
        )
    }
    assert drawn["adatopk"] == look(names.index("adatopk"))["color"]


def test_runs_that_are_given_twice_count_once(paths: list[Path], runs: list[Run]) -> None:
    again = [path.parent / "." / path.name / ".." / path.name for path in paths]
    assert [run.path.resolve() for run in load_all([*paths, *again])] == [
        run.path.resolve() for run in runs
    ]


def test_invalid_runs_are_on_no_front(paths: list[Path], tmp_path: Path) -> None:
    wrong = make_run(tmp_path, Recipe("none", 1.0, 2, 30, verdict=WRONG))
    loaded = load_all([*paths, wrong])
    assert wrong in [run.path for run in loaded]
    (row,) = [row for row in pareto.data(loaded) if row["algorithm"] == "none"]
    assert row["seeds"] == 1
