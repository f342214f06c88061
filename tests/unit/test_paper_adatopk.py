"""The page of AdaTopK's claims, from runs whose times and densities are known."""

from __future__ import annotations

import json
import sys
from math import exp, log
from pathlib import Path
from runpy import run_module
from statistics import fmean

import pytest
from synthetic_run import Recipe, make_run

from analysis.papers import Row, Runs
from analysis.papers.adatopk import ABLATIONS, FAMILY, rows

SEEDS = (1, 2, 3)
DENSITY: dict[str, float | None] = {
    "none": 1.0, "adatopk": None, "adatopk-0.05": 0.1,
    "dc2-da1": 0.5, "dc2-da2": 0.1, "dc2-da3": 0.45, "dc2-da4": 0.6, "dc2-da5": 0.3,
    "fixed-at-mean": 0.222, "walk-at-mean": 0.2, "topk-0.15": 0.15,
}  # fmt: skip
ACCURACY = {"dc2-da2": 0.5, "adatopk": 0.9, "topk-0.15": 0.92}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adatopk")
    entries = []
    for name, density in DENSITY.items():
        for seed in SEEDS:
            run = make_run(folder, Recipe(name, density, seed, steps=12))
            summary = json.loads((run / "summary.json").read_text())
            summary["accuracy"] = ACCURACY.get(name, 0.9) + 0.001 * seed
            (run / "summary.json").write_text(json.dumps(summary))
            entries.append({"dir": str(run)})
    (folder / "comparison.json").write_text(json.dumps({"runs": entries}))
    return folder


@pytest.fixture(scope="module")
def page(comparison: Path) -> dict[str, Row]:
    made = list(rows(Runs.read(comparison)))
    found = {row.claim: row for row in made}
    assert len(found) == len(made), "every claim has a line of its own"
    return found


def saved(comparison: Path, mine: str, theirs: str) -> float:
    """Share of their time that mine does not take, by the geometric mean over seeds."""
    runs = Runs.read(comparison)
    own, other = runs.values(mine, "time_s"), runs.values(theirs, "time_s")
    return 1 - exp(fmean(log(own[seed] / other[seed]) for seed in SEEDS))


def mean_of(row: Row) -> float:
    text = row.measured.split(" ")[0]
    return float(text.rstrip("%")) / (100 if "%" in text else 1)


@pytest.mark.parametrize("other", ["none", *FAMILY, *ABLATIONS])
def test_time_saved_is_of_theirs_and_adatopks(
    other: str, comparison: Path, page: dict[str, Row]
) -> None:
    name = "AdaTopK saves time against no compression" if other == "none" else f"… against {other}"
    expected = saved(comparison, "adatopk", other)
    assert mean_of(page[name]) == pytest.approx(expected, abs=6e-4)
    if other == "none":
        assert expected > 0.29 and (page[name].paper, page[name].verdict) == ("29 %", "holds")


def test_what_is_not_faster_does_not_hold(comparison: Path, page: dict[str, Row]) -> None:
    # DA2 sends less than AdaTopK in these runs
    assert saved(comparison, "adatopk", "dc2-da2") < 0
    assert page["… against dc2-da2"].verdict == "does not"


def test_accuracy_is_compared_with_a_margin(page: dict[str, Row]) -> None:
    def claim(name: str) -> Row:
        return page[f"AdaTopK loses no accuracy against {name} (margin 0.5 points)"]

    assert (claim("none").verdict, claim("none").paper) == ("holds", "none lost")
    assert (claim("topk-0.15").verdict, claim("topk-0.15").paper) == ("does not", "–")
    assert mean_of(claim("topk-0.15")) == pytest.approx(-0.02)


def test_orderings_have_their_direction(comparison: Path, page: dict[str, Row]) -> None:
    runs = Runs.read(comparison)
    assert mean_of(page["mean k: DA4 above DA5"]) == pytest.approx(0.3)
    assert page["mean k: DA4 above DA5"].verdict == "by construction"
    assert mean_of(page["time: dc2-da2 below DA4"]) == pytest.approx(
        saved(comparison, "dc2-da2", "dc2-da4"), abs=6e-4
    )
    for name in ("dc2-da2", "dc2-da5"):
        assert page[f"time: {name} below DA4"].verdict == "by construction"
    for name in ("dc2-da1", "dc2-da3", "dc2-da4", "dc2-da5", "adatopk", "none", "topk-0.15"):
        assert page[f"accuracy: DA2 below {name}"].verdict == "by construction"
    measured = fmean(runs.values("adatopk", "mean_k").values())
    line = page["AdaTopK's mean k (the ablations have 0.222)"]
    assert mean_of(line) == pytest.approx(measured, abs=1e-4)


def test_a_density_that_is_held_does_not_decline(comparison: Path, page: dict[str, Row]) -> None:
    assert mean_of(page["DA2's k is high, then low"]) == 0.0
    assert page["DA2's k is high, then low"].verdict == "not supported"
    line = page["AdaTopK's k starts high and declines (first tenth − second half)"]
    assert mean_of(line) == pytest.approx(
        Runs.read(comparison).decline("adatopk").mean or 0, abs=1e-4
    )


def test_every_variant_of_adatopk_has_a_line_with_both_verdicts(
    comparison: Path, page: dict[str, Row]
) -> None:
    row = page["adatopk-0.05: time saved; accuracy, against none"]
    assert mean_of(row) == pytest.approx(saved(comparison, "adatopk-0.05", "none"), abs=6e-4)
    assert row.verdict == "holds / holds"


def test_the_page_is_printed(
    comparison: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["adatopk", str(comparison)])
    monkeypatch.delitem(sys.modules, "analysis.papers.adatopk")
    run_module("analysis.papers.adatopk", run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(list(rows(Runs.read(comparison))))
    assert lines[2].startswith("| AdaTopK saves time against no compression | 29 % | ")
