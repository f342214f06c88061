"""The figure of densities asked for and achieved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_run import Recipe, make_run

from analysis import tables
from analysis.figures import FIGURES, density, figures_of
from analysis.load import Run, load, load_all
from analysis.style import look
from testbed.fidelity.verdict import Verdict

DOUBTFUL = Verdict("degraded", ["changes of <server> down came 14.0 ms late"])


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    """Of algorithms that look at no element to choose."""
    out = tmp_path / "plain"
    recipes = [Recipe("none", 1.0, steps=3), Recipe("topk-0.15", 0.15, steps=3)]
    return load_all([make_run(out, recipe) for recipe in recipes])


def choosing(out: Path, recipe: Recipe, error: float, ties: int = 0) -> Path:
    """A run whose selector looked at the elements, and of which worker 0 sent ``1 + error`` of what was asked
    in every other step; two passes in the first step and one in the others."""
    path = make_run(out, recipe)
    for worker in (path / "events").glob("worker-*.jsonl"):
        lines = [json.loads(line) for line in worker.read_text().splitlines()]
        for line in lines:
            off = error if line["node"] == "worker-0" and line["step"] % 2 else 0.0
            line["sent_count"] = round(line["density"] * line["size"]) + round(
                off * line["density"] * line["size"]
            )
            passes = 1.0 if line["step"] else 2.0
            line["selection"] = {"passes": passes, "threshold": 0.1, "ties": ties}
        worker.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "summary.json").unlink()
    return path


def test_the_density_figure_is_drawn_of_those_that_chose(runs: list[Run], tmp_path: Path) -> None:
    assert density not in figures_of(runs)
    chose = load(choosing(tmp_path, Recipe("laplace-0.01", 0.01, steps=6), 0.2))
    assert figures_of([*runs, chose]) == [*FIGURES, density]
    rows = density.data([*runs, chose])
    assert {row["algorithm"] for row in rows} == {"laplace-0.01"}
    assert [row["step"] for row in rows] == list(range(6))
    assert [row["passes"] for row in rows] == [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert [row["within"] for row in rows] == [1.0, 0.75] * 3
    assert rows[1]["ratio_min"] == 1.0
    assert rows[1]["ratio_max"] == pytest.approx(1.2)
    assert rows[1]["ratio"] == pytest.approx(1.05)
    assert rows[1]["target"] == pytest.approx(0.01)
    assert rows[1]["achieved"] == pytest.approx(0.0105)


def test_ties_are_counted_apart(tmp_path: Path) -> None:
    """200 too many of 1,500, which are as large as one another: a threshold sends all or none."""
    tied = load(choosing(tmp_path, Recipe("laplace-0.01", 0.01, steps=2), 200 / 1500, ties=200))
    assert [row["within"] for row in density.data([tied])] == [1.0, 1.0]


def test_the_density_figure_says_what_is_in_the_band(runs: list[Run], tmp_path: Path) -> None:
    paths = [
        choosing(tmp_path, Recipe("laplace-0.01", 0.01, steps=8, verdict=DOUBTFUL), 0.2),
        choosing(tmp_path, Recipe("gaussian-0.1", 0.1, steps=8), 4.0),
    ]
    chose = [load(path) for path in paths]
    figure = density.draw([*runs, *chose])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "laplace-0.01 (87.5 %)" in labels
    top, ratio, passes = figure.axes
    assert ratio.get_yscale() == "log"
    assert density.draw(chose[:1]).axes[1].get_yscale() == "linear"
    assert (top.get_ylabel(), passes.get_xlabel()) == ("Density k", "Step")
    assert len(passes.get_lines()) == 2
    for index, line in enumerate(passes.get_lines(), start=len(runs)):
        assert line.get_color() == look(index)["color"], "as in all other figures"
    for axes in (density.draw(chose[:1]).axes[0], passes):
        highest = max(max(line.get_ydata()) for line in axes.get_lines())
        assert axes.get_ylim()[1] > 1.05 * highest


def test_runs_that_choose_have_the_density_figure_and_two_columns_of_the_table(
    tmp_path: Path,
) -> None:
    run = load(choosing(tmp_path, Recipe("laplace-0.01", 0.01, steps=3), 0.0))
    assert "density" in {module.NAME for module in figures_of([run])}
    assert len(figures_of([run])) == len(FIGURES) + 1
    (row,) = tables.rows([run])
    assert row["mean_achieved_k"] == pytest.approx(0.01)
    assert row["mean_passes"] == pytest.approx(4 / 3)


def test_summaries_of_before_have_no_passes(runs: list[Run]) -> None:
    old = {key: value for key, value in runs[0].summary.items() if key not in tables.SELECTION}
    (row,) = tables.rows_of([old])
    assert (row["mean_achieved_k"], row["mean_passes"]) == (None, None)
    assert tables.cells_of(row)[-3:-1] == ["–", "–"]
