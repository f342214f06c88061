"""From run directories to figures, table and report."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from synthetic_run import Recipe, make_run

from analysis import tables
from analysis.figures import (
    FIGURES,
    accuracy_over_time,
    fidelity,
    phases,
    rate_k_delay,
    speedup_bars,
)
from analysis.load import Run, by_algorithm, load, load_all
from analysis.report import make_figures, write_report
from analysis.series import EndSamples
from analysis.style import UNRELIABLE, look, narrows_style, write
from testbed.errors import InputError
from testbed.fidelity.verdict import Verdict

STEPS = 20


DOUBTFUL = Verdict("degraded", ["changes of <server> down came 14.0 ms late"])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def paths(out: Path) -> list[Path]:
    return [
        make_run(out, Recipe("topk-0.15", 0.15, 1, STEPS)),
        make_run(out, Recipe("adatopk", None, 1, STEPS, verdict=DOUBTFUL)),
        make_run(out, Recipe("none", 1.0, 1, STEPS)),
        make_run(out, Recipe("none", 1.0, 2, STEPS)),
        make_run(out, Recipe("topk-0.15", 0.15, 2, STEPS)),
    ]


@pytest.fixture(scope="module")
def runs(paths: list[Path]) -> list[Run]:
    return load_all(paths)


@pytest.fixture(scope="module")
def drawn(paths: list[Path], out: Path) -> Path:
    """Where ``testbed report`` wrote its report of all runs."""
    write_report(paths, out / "report")
    return out / "report"


def test_runs_are_ordered_none_first(runs: list[Run]) -> None:
    assert [(run.algorithm, run.seed) for run in runs] == [
        ("none", 1), ("none", 2), ("topk-0.15", 1), ("topk-0.15", 2), ("adatopk", 1),
    ]  # fmt: skip
    assert runs[0].server == "server"


def test_columns_are_means_over_workers(runs: list[Run]) -> None:
    records = [e for e in runs[4].events["step"] if e["step"] == 7]
    assert len(records) == 4
    for column in ("delay_s", "accuracy"):
        mean = sum(record[column] for record in records) / 4
        assert runs[4].per_step(column)[7] == pytest.approx(mean)
    assert len(runs[4].steps) == STEPS


def test_dilated_times_are_drawn_in_model_time(tmp_path: Path, runs: list[Run]) -> None:
    ten = load(make_run(tmp_path, Recipe("none", 1.0, 1, STEPS, dilation=10.0)))
    one = runs[0]
    assert ten.per_step("delay_s") == pytest.approx(one.per_step("delay_s") / 10)
    assert ten.per_step("loss") == pytest.approx(one.per_step("loss"))
    assert ten.evaluations()[1] == pytest.approx(one.evaluations()[1] / 10)
    rates = EndSamples(one, "server", "down").samples
    slow = EndSamples(ten, "server", "down").samples
    assert slow.start == pytest.approx(rates.start / 10)
    assert slow.requested == pytest.approx(rates.requested * 10)


def test_the_table_pairs_by_seed(runs: list[Run]) -> None:
    rows = tables.rows(runs)
    assert list(rows[0]) == list(tables.COLUMNS)
    for row, run in zip(rows, runs, strict=True):
        dense = next(r for r in runs if r.algorithm == "none" and r.seed == run.seed)
        assert row["speedup"] == pytest.approx(dense.summary["time_s"] / run.summary["time_s"])
    assert rows[2]["speedup"] > 1.5
    assert tables.rows(runs[2:])[0]["speedup"] is None


def test_runs_of_other_lengths_are_not_set_against_each_other(runs: list[Run]) -> None:
    entries = [dict(run.summary) for run in runs[:3]]
    entries[2]["steps"] = 3
    assert tables.rows_of(entries)[2]["speedup"] is None
    for lost in (0, 2):
        entries = [dict(run.summary) for run in runs]
        entries[lost]["verdict"] = "invalid"
        assert tables.rows_of(entries)[2]["speedup"] is None


def test_the_table_as_csv_and_on_a_terminal(runs: list[Run], paths: list[Path]) -> None:
    read = list(csv.DictReader(tables.to_csv(tables.rows(runs)).splitlines()))
    assert read[2]["algorithm"] == "topk-0.15"
    assert float(read[2]["time_s"]) == runs[2].summary["time_s"]
    shown = tables.rich_table(tables.comparison_rows(paths))
    assert shown.row_count == 5
    assert len(shown.columns) == 11
    assert tables.cells_of({**tables.rows(runs)[0], "accuracy": None})[4] == "–"


def test_each_figure_writes_what_it_plots(runs: list[Run], drawn: Path) -> None:
    made = {path.name for path in (drawn / "figures").iterdir()}
    assert made == {f"{module.NAME}.{kind}" for module in FIGURES for kind in ("png", "pdf", "csv")}
    for module in FIGURES:
        stem = drawn / "figures" / module.NAME
        rows = list(csv.DictReader(stem.with_suffix(".csv").read_text().splitlines()))
        plotted = module.data(runs)
        assert list(rows[0]) == list(plotted[0])
        assert rows == [
            {key: "" if value is None else str(value) for key, value in row.items()}
            for row in plotted
        ]
        assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert stem.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def doubtful(path: Path) -> Run:
    """A run with a link that was busy, a late change, and times in which the machine was in doubt."""
    rows = [
        {"kind": "sample", "link": "server", "direction": "down", "from_s": n / 10, "to_s": (n + 1) / 10,
         "asked_bits": 1e6, "delivered_bits": 0.99e6 if n < 10 else 0.5e6, "busy": n < 15}
        for n in range(25)
    ]  # fmt: skip
    rows.append(
        {"kind": "change", "link": "server", "direction": "down", "due_s": 1.0, "applied_s": 1.02}
    )
    rows.append({"kind": "disturbed", "from_s": 0.5, "to_s": 0.7, "reason": "stolen", "ends": []})
    rows.append(
        {
            "kind": "disturbed",
            "from_s": 1.5,
            "to_s": 1.7,
            "reason": "read_back",
            "ends": ["server down"],
        }
    )
    one = load(path)
    return Run(one.path, {**one.manifest, "dilation": 2.0}, one.summary, one.events, rows)


def test_fidelity_is_drawn_in_seconds_of_model_time(paths: list[Path]) -> None:
    run = doubtful(paths[2])
    rows = fidelity.data([run])
    errors = [
        (row["time_s"], row["value"], row["busy"]) for row in rows if row["quantity"] == "error_1s"
    ]
    # Ten seconds of the wall are five of the model: 1.25 s, of which one is whole, and not all of that was busy.
    assert errors == [(0.0, pytest.approx((10 * 0.99 + 10 * 0.5) / 20 - 1), False)]
    rates = {
        quantity: [row["value"] for row in rows if row["quantity"] == quantity]
        for quantity in ("asked_100ms_mbit_s", "delivered_100ms_mbit_s", "delivered_1s_mbit_s")
    }
    assert rates["asked_100ms_mbit_s"] == pytest.approx([20.0] * 25)
    assert rates["delivered_100ms_mbit_s"] == pytest.approx([19.8] * 10 + [10.0] * 15)
    assert rates["delivered_1s_mbit_s"] == pytest.approx([(10 * 19.8 + 10 * 10.0) / 20])
    lines = fidelity.draw([run]).axes[0].lines
    for line, values in zip(lines, rates.values(), strict=True):
        assert set(line.get_ydata()) == set(values)
    assert [row["value"] for row in rows if row["quantity"] == "late_ms"] == [pytest.approx(20.0)]
    shaded = [(row["time_s"], row["value"]) for row in rows if row["quantity"] == "disturbed"]
    assert shaded == [(0.25, 0.35), (0.75, 0.85)]
    assert run.disturbed("worker-0 up") == [(0.25, 0.35)]
    assert len(run.disturbed("server down")) == 2


def test_disturbed_times_are_shaded(paths: list[Path]) -> None:
    run = doubtful(paths[2])
    for module, panels in (
        (fidelity, [2]),
        (rate_k_delay, [2, 2, 2]),
        (accuracy_over_time, [2]),
    ):
        axes = module.draw([run]).axes
        assert [len(a.patches) for a in axes][: len(panels)] == panels
        assert all(patch.get_height() < 0.05 for patch in axes[0].patches), "a strip, not a cover"
        plain = module.draw([load(paths[2])]).axes
        assert len(plain[0].patches) == 0


def test_disturbed_times_are_in_the_colour_of_their_run(paths: list[Path]) -> None:
    plain = [load(path) for path in paths]
    names = list(by_algorithm(plain))
    chosen = [next(run for run in plain if run.algorithm == name) for name in names]
    runs = [replace(run, links=[*run.links, *doubtful(run.path).links[-2:]]) for run in chosen[1:]]
    for module in (rate_k_delay, accuracy_over_time):
        with narrows_style():
            figure = module.draw([chosen[0], *runs])
            patches = figure.axes[0].patches
            rows = {to_hex(patch.get_facecolor()): patch.get_y() for patch in patches}
            assert set(rows) == {to_hex(look(index)["color"]) for index in range(1, len(names))}
            assert len(set(rows.values())) == len(rows), "each algorithm has a row of its own"
            handle = figure.legends[0].get_patches()[-1]
            assert to_hex(handle.get_facecolor()) not in rows


def test_colours_differ_from_each_other_and_from_grey() -> None:
    """Black and grey are what was asked for, idle, and doubtful."""
    with narrows_style():
        colours = [to_rgb(look(index)["color"]) for index in range(8)]
    assert len(set(colours)) == 8
    assert all(max(colour) - min(colour) > 0.3 for colour in colours)


def test_the_legend_of_the_links_has_what_is_drawn_alone(paths: list[Path]) -> None:
    run = doubtful(paths[2])
    run = replace(run, manifest={**run.manifest, "dilation": 1.0})

    def named(given: Run) -> list[str]:
        return [text.get_text() for text in fidelity.draw([given]).legends[0].get_texts()]

    always = ["asked", "delivered per 100 ms", "per 1 s"]
    assert named(run) == [*always, "not backlogged throughout", UNRELIABLE]
    calm = [row for row in run.links if row["kind"] != "disturbed"]
    busy = [{**row, "busy": True} if row["kind"] == "sample" else row for row in calm]
    assert named(replace(run, links=calm)) == [*always, "not backlogged throughout"]
    assert named(replace(run, links=busy)) == always


def test_a_direction_without_a_moment_of_samples_is_not_drawn(paths: list[Path]) -> None:
    run = doubtful(paths[2])
    still = {**run.links[0], "link": "worker-0", "from_s": 1.0, "to_s": 1.0}
    both = replace(run, links=[*run.links, still])
    drawn = fidelity.draw([both]).axes
    assert [axes.get_title(loc="left") for axes in drawn if axes.get_title(loc="left")] == [
        "server down"
    ]


def test_the_share_of_changes_that_were_as_late_is_drawn(paths: list[Path]) -> None:
    """Of 1, 4 and 10 ms: between two of them as many as were later than the first."""
    run = doubtful(paths[2])
    changes = [
        {"kind": "change", "link": "server", "direction": "down", "due_s": at, "applied_s": at + late_s}
        for at, late_s in ((0.2, 0.004), (0.6, 0.001), (1.4, 0.010))
    ]  # fmt: skip
    links = [row for row in run.links if row["kind"] != "change"]
    (line,) = fidelity.draw([replace(run, links=[*links, *changes])]).axes[-1].lines
    x, y = np.array(line.get_xdata()), np.array(line.get_ydata())
    assert line.get_drawstyle() in {"steps", "steps-pre"}, "a share holds up to its lateness"
    for late_ms, share in ((0.5, 1.0), (1.0, 1.0), (2.0, 2 / 3), (4.0, 2 / 3), (7.0, 1 / 3)):
        assert y[np.searchsorted(x, late_ms - 1e-6)] == pytest.approx(share), late_ms
    assert line.get_markevery() == slice(1, None), "no change was as late as where the line begins"


def test_the_run_most_in_doubt_is_the_one_whose_links_are_shown(runs: list[Run]) -> None:
    """An invalid one before one that is degraded, and that before those that are valid."""

    def shown(given: list[Run]) -> str:
        return " ".join(legend.get_title().get_text() for legend in fidelity.draw(given).legends)

    assert "adatopk s1" in shown(runs)
    first, *others = runs
    assert (first.algorithm, first.seed) == ("none", 1)
    invalid = replace(first, summary={**first.summary, "verdict": "invalid"})
    assert "none s1" in shown([invalid, *others]) and "none s1" in shown([*others, invalid])


def test_the_same_runs_give_the_same_bytes(paths: list[Path], drawn: Path, tmp_path: Path) -> None:
    for path in make_figures(load_all(paths), tmp_path):
        assert path.read_bytes() == (drawn / "figures" / path.name).read_bytes(), path.name


class CountedLayout(ConstrainedLayoutEngine):
    """Counts how often it places what is in a figure."""

    times = 0

    def execute(self, fig: Figure) -> None:
        self.times += 1
        super().execute(fig)


def test_a_figure_is_laid_out_once_for_all_its_files_and_drawn_once_for_each(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, alone, drawn = CountedLayout(), BytesIO(), []
    draw = Figure.draw
    with narrows_style():
        speedup_bars.draw(runs).savefig(alone, format="png", metadata={"Software": None})
        figure = speedup_bars.draw(runs)
        figure.set_layout_engine(layout)
        monkeypatch.setattr(Figure, "draw", lambda *given: drawn.append(draw(*given)))
        for suffix in ("png", "pdf", "svg"):
            write(figure, tmp_path / f"figure.{suffix}")
    assert (layout.times, len(drawn)) == (1, 3)
    assert (tmp_path / "figure.png").read_bytes() == alone.getvalue(), "not as matplotlib has it"


def test_accuracy_is_the_mean_over_seeds(runs: list[Run]) -> None:
    rows = [row for row in accuracy_over_time.data(runs) if row["algorithm"] == "none"]
    assert [row["step"] for row in rows] == [9, 19]
    values = [run.evaluations()[2][1] for run in runs[:2]]
    assert rows[1]["accuracy"] == pytest.approx(sum(values) / 2)
    assert (rows[1]["accuracy_min"], rows[1]["seeds"]) == (min(values), 2)


def test_rates_add_up_to_what_was_carried(runs: list[Run]) -> None:
    rows = rate_k_delay.data(runs)
    quantities = {row["quantity"] for row in rows}
    assert quantities == {"asked_mbit_s", "delivered_mbit_s", "k", "delay_s"}
    assert {row["seed"] for row in rows} == {1}
    mine = [r for r in rows if (r["quantity"], r["algorithm"]) == ("delivered_mbit_s", "none")]
    width = mine[1]["time_s"] - mine[0]["time_s"]
    sent = sum(row["value"] for row in mine) * width * 1e6
    rate = EndSamples(runs[0], "server", "down").samples.delivered
    assert sent == pytest.approx(sum(rate * 0.1), rel=0.03)
    asked = [row["value"] for row in rows if row["quantity"] == "asked_mbit_s"]
    assert 20 <= min(asked) < max(asked) <= 100


def serverless(run: Run, name: str, time_s: float | None = None) -> Run:
    """The same run as if peers had exchanged gradients, ranks in the order of the manifest."""
    ranks = {"worker-0": 1, "worker-1": 0, "worker-2": 2, "worker-3": 3}
    nodes = {
        node: {**known, "rank": ranks.get(node, known["rank"])}
        for node, known in run.manifest["nodes"].items()
    }
    row = {"name": name, "exchange": "ring"}
    summary = run.summary if time_s is None else {**run.summary, "time_s": time_s}
    return replace(
        run, manifest={**run.manifest, "algorithm": row, "nodes": nodes}, summary=summary
    )


def test_the_first_worker_is_the_one_of_rank_0(runs: list[Run]) -> None:
    assert serverless(runs[0], "ring").server == "worker-1"


def test_all_rates_are_of_the_one_link_that_the_axis_names(runs: list[Run]) -> None:
    """Also where some run has a server, and another has none."""
    ring = serverless(runs[2], "ring", time_s=float(runs[0].summary["time_s"]) / 2)
    for own, link in (([runs[0], ring], "server"), ([ring], "worker-1")):
        axes = rate_k_delay.draw(own).axes[0]
        assert axes.get_ylabel() == f"Rate to {link}\n(Mbit/s)"
        samples = EndSamples(ring, link, "down").samples
        asked, *_ = (row for row in rate_k_delay.data(own) if row["quantity"] == "asked_mbit_s")  # fmt: skip
        assert asked["value"] * 1e6 == pytest.approx(samples.requested[0])
        mine = [
            row["value"]
            for row in rate_k_delay.data(own)
            if (row["algorithm"], row["quantity"]) == ("ring", "delivered_mbit_s")
        ]
        assert any(mine) == bool(samples.delivered.any())


def test_every_delivered_rate_is_drawn_for_its_time(runs: list[Run]) -> None:
    """The last one, too."""
    rows = rate_k_delay.data(runs[:1])
    times = [row["time_s"] for row in rows if row["quantity"] == "delivered_mbit_s"]
    line = rate_k_delay.draw(runs[:1]).axes[0].lines[1]
    drawn = np.array(line.get_xdata())
    assert list(drawn[:-1]) == times
    assert drawn[-1] - drawn[-2] == pytest.approx(times[1] - times[0])
    assert line.get_ydata()[-1] == line.get_ydata()[-2]


def test_bars_are_means_with_their_range(runs: list[Run]) -> None:
    rows = {row["algorithm"]: row for row in speedup_bars.data(runs)}
    assert rows["none"]["speedup"] == 1.0
    assert rows["topk-0.15"]["seeds"] == 2
    assert rows["topk-0.15"]["speedup_min"] <= rows["topk-0.15"]["speedup"]


def test_a_bar_is_the_mean_of_all_seeds(runs: list[Run]) -> None:
    """Each against the dense run of its own seed."""

    def timed(name: str, seed: int, time_s: float) -> Run:
        entry = {**runs[0].summary, "algorithm": name, "seed": seed, "time_s": time_s}
        return replace(runs[0], manifest={**runs[0].manifest, "algorithm": {"name": name}}, summary=entry)  # fmt: skip

    times = {"none": (10.0, 20.0, 30.0), "half": (5.0, 5.0, 30.0)}
    made = [timed(name, seed, at) for name, own in times.items() for seed, at in enumerate(own)]
    _, half = speedup_bars.data(made)
    assert half["speedup"] == pytest.approx((2 + 4 + 1) / 3)
    assert (half["speedup_min"], half["speedup_max"], half["seeds"]) == (1.0, 4.0, 3)


def test_phases_add_up_to_the_step(runs: list[Run]) -> None:
    total = sum(row["seconds"] for row in phases.data(runs[:1]))
    assert total == pytest.approx(runs[0].summary["step_s"], rel=1e-6)


@pytest.mark.parametrize("module", FIGURES)
def test_a_figure_says_which_runs_are_in_doubt(module, runs: list[Run]) -> None:
    assert "DEGRADED: adatopk s1" in texts(module.draw(runs))
    assert "DEGRADED" not in texts(module.draw(runs[:2]))


@pytest.mark.parametrize("module", FIGURES)
def test_a_figure_has_title_and_units(module, runs: list[Run]) -> None:
    figure = module.draw(runs)
    labels = [axes.get_xlabel() for axes in figure.axes][-1]
    assert "(s)" in labels or "(ms)" in labels or "÷" in labels
    assert figure.get_figwidth() in (3.5, 7.16)
    titles = [figure.get_suptitle(), *(legend.get_title().get_text() for legend in figure.legends)]
    assert any(titles)


def texts(figure) -> str:
    return figure.get_supxlabel()


def test_the_report_is_one_file(drawn: Path) -> None:
    page = (drawn / "report.html").read_text()
    for module in FIGURES:
        assert all(f'href="figures/{module.NAME}.{kind}"' in page for kind in ("png", "pdf", "csv"))
    assert "&lt;server&gt;" in page
    assert "<server>" not in page
    assert "4 workers and 1 server" in page
    assert "A processor, 2 processors" in page
    assert (drawn / "table.csv").exists()


def test_a_comparison_stands_for_its_runs_also_when_moved(
    paths: list[Path], tmp_path: Path
) -> None:
    for path in paths[1:3]:
        shutil.copytree(path, tmp_path / "runs" / path.name)
    comparison = tmp_path / "comparisons" / "c"
    comparison.mkdir(parents=True)
    entries = [{"dir": f"/nowhere/runs/{path.name}"} for path in paths[1:3]]
    (comparison / "comparison.json").write_text(json.dumps({"runs": entries}))
    assert [run.algorithm for run in load_all([comparison])] == ["none", "adatopk"]
    empty = tmp_path / "runs" / paths[1].name / "events"
    shutil.rmtree(empty)
    assert [run.algorithm for run in load_all([comparison])] == ["none"]
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(InputError) as without:
        load_all([comparison])
    said = str(without.value)
    assert said.startswith(f"{comparison / 'comparison.json'}: lists the run '/nowhere/runs/")
    assert f"which is not there. Bring its runs into {tmp_path.resolve() / 'runs'}" in said


def test_what_is_not_a_run_is_refused_in_a_sentence(paths: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run directory"):
        load_all([tmp_path / "absent"])
    with pytest.raises(InputError, match=r"no manifest\.json"):
        load_all([tmp_path])
    with pytest.raises(InputError, match="no run"):
        load_all([])
    bare = tmp_path / "bare"
    shutil.copytree(paths[0], bare)
    shutil.rmtree(bare / "events")
    with pytest.raises(InputError, match="before its first step"):
        load_all([bare])
    other = make_run(tmp_path, Recipe("none", steps=1, hash="f" * 16))
    with pytest.raises(InputError, match="different scenarios"):
        load_all([paths[0], other])
