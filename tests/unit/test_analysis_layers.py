"""The figures of one step and of layers, and the report's table of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket_rig import HEADER, LAYERS, Plan, make_bucket_run
from synthetic_run import Recipe, make_run

from analysis import tables
from analysis.figures import FIGURES, figures_of, layers, timeline
from analysis.figures.timeline import View, draw_view
from analysis.load import Run, load, load_all
from analysis.report import render
from analysis.series import layer_phase_shares
from analysis.style import narrows_style
from testbed.fidelity.verdict import Verdict
from testbed.records.run_directory import read_jsonl

DOUBTFUL = Verdict("degraded", ["changes of <server> down came 14.0 ms late"])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def paths(out: Path) -> list[Path]:
    return [
        make_bucket_run(out, Plan()),
        make_bucket_run(out, Plan(seed=2)),
        make_bucket_run(out, Plan("algc", density=0.02, joined=2, verdict=DOUBTFUL)),
    ]


@pytest.fixture(scope="module")
def runs(paths: list[Path]) -> list[Run]:
    return load_all(paths)


@pytest.fixture(scope="module")
def plain(out: Path) -> Run:
    return load(make_run(out / "plain", Recipe("topk-0.15", 0.15, steps=4)))


def test_shares_are_means_over_workers(paths: list[Path], tmp_path: Path) -> None:
    events = [*read_jsonl(paths[0] / "events" / "worker-0.jsonl")]
    for event in events:
        if event["kind"] == "bucket" and event["step"] == 2:
            for part in event["parts"].values():
                part[1], part[2], part[3] = part[1] * 4, part[2] * 2, 0.4
    run = load(paths[0])
    others = [e for e in run.events["bucket"] if e["node"] != "worker-0"]
    mixed = [e for e in events if e["kind"] == "bucket"] + others
    own = layer_phase_shares(Run(run.path, run.manifest, run.summary, {"bucket": mixed}, []))
    assert own is not None
    assert own.layers == tuple(LAYERS)
    assert own.buckets == tuple(range(11, -1, -1))
    assert own.elements == tuple(Plan().elements(layer) for layer in range(12))
    assert own.density[:, 0] == pytest.approx(np.full(12, 0.1))
    assert own.density[:, 1] == pytest.approx(np.full(12, (0.4 + 0.1 + 0.1) / 3))
    assert own.density_asked[:, 1] == pytest.approx(np.full(12, 0.2))
    assert own.bytes_up[3, 1] == pytest.approx(own.bytes_up[3, 0] * 4 / 3)


def test_bytes_of_layers_add_up_to_frames(runs: list[Run]) -> None:
    for run in runs:
        own = layer_phase_shares(run)
        assert own is not None
        buckets = len(set(own.buckets))
        sent = sum(r["bytes_up"] for r in run.events["bucket"] if (r["node"], r["step"]) == ("worker-1", 4))  # fmt: skip
        assert float(own.bytes_up[:, 3].sum()) == pytest.approx(
            sent - HEADER * buckets, abs=buckets
        )


def test_a_layer_that_nobody_sent_in_a_step_has_no_density(runs: list[Run]) -> None:
    run = runs[0]
    left = [r for r in run.events["bucket"] if (r["step"], r["bucket"]) != (3, 0)]
    own = layer_phase_shares(Run(run.path, run.manifest, run.summary, {"bucket": left}, []))
    assert own is not None
    assert np.isnan(own.density[-1, 2])
    assert np.isfinite(own.density).sum() == own.density.size - 1


def test_a_layer_in_parts_to_two_servers_is_one_layer(runs: list[Run]) -> None:
    run = runs[0]
    parted: list[dict[str, Any]] = []
    for record in run.events["bucket"]:
        ((name, (size, sent, length, density)),) = record["parts"].items()
        half = [size / 2, sent / 2, length / 2, density]
        for server, rows in enumerate(("0:5", "5:10")):
            place = 2 * record["bucket"] + server
            parted.append({**record, "bucket": place, "parts": {f"{name}[{rows}]": half}})
    whole = layer_phase_shares(run)
    own = layer_phase_shares(Run(run.path, run.manifest, run.summary, {"bucket": parted}, []))
    assert whole is not None and own is not None
    assert (own.layers, own.elements) == (whole.layers, whole.elements)
    assert own.bytes_up == pytest.approx(whole.bytes_up)
    assert own.density == pytest.approx(whole.density)
    assert own.density_asked == pytest.approx(whole.density_asked)


def test_a_run_without_buckets_has_no_shares(plain: Run) -> None:
    assert layer_phase_shares(plain) is None
    assert tables.layer_rows([plain]) == []
    assert figures_of([plain]) == [*FIGURES]


def test_the_table_has_a_row_for_every_layer(runs: list[Run]) -> None:
    rows = tables.layer_rows(runs)
    assert [row["layer"] for row in rows] == LAYERS * 2
    assert [row["seeds"] for row in rows] == [2] * 12 + [1] * 12
    assert rows[0]["achieved"] == pytest.approx(0.1)
    assert rows[12]["achieved"] == pytest.approx(0.02)
    assert rows[0]["bytes_up"] == pytest.approx(6 * 0.1 * 2000)
    assert sum(row["share"] for row in rows[:12]) == pytest.approx(1)
    assert len(tables.layer_cells(rows[0])) == len(tables.LAYER_HEADINGS)


def test_figures_of_buckets_are_drawn_of_those_that_have_them(runs: list[Run], plain: Run) -> None:
    assert figures_of([plain, *runs]) == [*FIGURES, timeline, layers]
    assert {row["algorithm"] for row in layers.data([plain, *runs])} == {"topk-0.1+layers", "algc"}
    assert timeline.data([plain]) == []
    beside = timeline.data([plain, *runs])
    names = {"topk-0.15", "topk-0.1+layers", "algc"}
    assert {row["algorithm"] for row in beside} == names
    assert {row["row"] for row in beside if row["algorithm"] == "topk-0.15"} == {""}


def test_the_figure_of_layers_has_a_map_for_each_algorithm(runs: list[Run]) -> None:
    with narrows_style():
        figure = layers.draw(runs)
    bars, *maps, _ = figure.axes
    assert [axes.get_title(loc="left") for axes in maps] == ["topk-0.1+layers s1", "algc s1"]
    assert [tick.get_text() for tick in maps[0].get_yticklabels()] == LAYERS
    assert len(bars.patches) == 24
    assert "DEGRADED: algc s1" in str(figure.texts and [t.get_text() for t in figure.texts])
    assert "54 kB in all" in figure.legends[0].get_texts()[0].get_text()


def test_of_many_algorithms_those_are_drawn_of_which_there_is_most_to_see(out: Path) -> None:
    """Six that send all come before one that does not, and before one whose densities differ."""
    dense = [
        load(make_bucket_run(out / "many", Plan(f"dense-{n}", density=1.0, steps=2, workers=1)))
        for n in range(6)
    ]
    topk, other = [load(make_bucket_run(out / "many", Plan(n, steps=2, workers=1))) for n in ("topk", "other")]  # fmt: skip
    for record in other.events["bucket"]:
        for part in record["parts"].values():
            part[3] = 0.1 if record["bucket"] else 0.3
    drawn = {row["algorithm"] for row in layers.data([*dense, topk, other])}
    assert drawn == {"dense-0", "dense-1", "dense-2", "dense-3", "topk", "other"}


def test_many_steps_are_drawn_in_bins(out: Path) -> None:
    own = layer_phase_shares(load(make_bucket_run(out / "long", Plan(steps=250, workers=1))))
    assert own is not None
    steps, density = layers.binned(own)
    assert density.shape == (12, len(steps))
    assert list(steps[:3]) == [1, 4, 7]
    assert len(steps) == 84 <= layers.MOST_BINS


def test_a_step_is_drawn_from_its_begin_and_neighbours_are_in_it(runs: list[Run]) -> None:
    rows = [row for row in timeline.data(runs) if row["algorithm"] == "topk-0.1+layers"]
    assert {row["node"] for row in rows} == {"worker-0", "server"}
    own = [row for row in rows if row["step"] == 3 and row["activity"] != "stall"]
    assert min(row["from_ms"] for row in own) == 0
    done_ms = max(row["to_ms"] for row in own if row["activity"] not in ("held", "apply"))
    later = [row for row in rows if row["step"] == 4]
    assert max(row["to_ms"] for row in rows) == pytest.approx(1.06 * done_ms)
    assert {row["activity"] for row in later} == {"stall", "forward"}
    in_rows = [r for r in rows if r["activity"] == "backward" and r["row"] != ""]
    assert {r["layers"]: r["layer"] for r in in_rows} == {layer: layer for layer in LAYERS}


def test_axes_are_in_milliseconds_of_the_model(out: Path, runs: list[Run]) -> None:
    slow = load(make_bucket_run(out / "slow", Plan(dilation=10.0)))
    one, ten = timeline.data(runs[:1]), timeline.data([slow])
    assert [row["to_ms"] for row in ten] == pytest.approx([row["to_ms"] for row in one])


def test_the_figure_of_a_step_says_whose_it_is(runs: list[Run]) -> None:
    with narrows_style():
        figure = draw_view(View(runs[0], (2,), 2))
        several = timeline.draw(runs)
    assert [axes.get_ylabel() for axes in figure.axes] == ["worker-0", "worker-1", "server"]
    title = figure.legends[0].get_title().get_text()
    assert title == "demo, topk-0.1+layers s1, step 2, 2 of 3 workers"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"forward", "backward", "waiting for parameters", "compress", "gather"} <= {*labels}
    assert len(labels) == len(set(labels))
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == [
        "computation", *LAYERS[::-1],
    ]  # fmt: skip
    assert several.axes[2].get_title(loc="left") == "algc s1, step 3"
    assert several.axes[3].get_xlabel().startswith("Model time from the begin of the step (ms)")


def test_names_that_are_longer_than_their_panel_is_high_stand_upright(
    out: Path, runs: list[Run]
) -> None:
    def angles(run: Run) -> set[float]:
        with narrows_style():
            figure = draw_view(View(run, (2,), 1))
        return {axes.yaxis.label.get_rotation() for axes in figure.axes}

    assert angles(runs[0]) == {90.0}
    few = load(make_bucket_run(out / "few", Plan(steps=3, joined=6)))
    assert angles(few) == {0.0}


def test_a_step_without_buckets_is_drawn_by_its_phases(plain: Run) -> None:
    with narrows_style():
        figure = draw_view(View(plain, (2,), 9))
    assert len(figure.axes) == 5
    assert [axes.get_yticklabels()[0].get_text() for axes in figure.axes] == [
        *(f"worker-{rank}" for rank in range(4)), "server",
    ]  # fmt: skip


def test_the_report_has_the_table_of_layers(runs: list[Run]) -> None:
    assert {"layers", "timeline"} <= {module.NAME for module in figures_of(runs)}
    assert len(tables.layer_rows(runs)) == 24
    page = render([runs])
    assert page.count("<td>layer7</td>") == 2
    assert "<summary>Layers: 24 rows</summary>" in page
