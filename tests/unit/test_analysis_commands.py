"""`testbed report`, where there is little or nothing to draw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_run import Recipe, make_run

from analysis.figures import FIGURES
from testbed.cli.report import report
from testbed.errors import InputError


def test_what_is_no_run_is_refused_in_a_sentence(tmp_path: Path, capsys) -> None:
    with pytest.raises(InputError, match=r"no manifest\.json"):
        report([tmp_path], tmp_path / "r")
    assert capsys.readouterr().out == ""


def test_the_report_verb_draws_a_run_of_one_step_without_links_or_accuracy(
    tmp_path: Path, capsys
) -> None:
    path = make_run(tmp_path, Recipe("adatopk", None, steps=1))
    (path / "links.jsonl").unlink()
    report([path], tmp_path / "r", as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"][0]["algorithm"] == "adatopk"
    assert printed["runs"][0]["accuracy"] is None
    assert printed["files"][-1].endswith("report.html")
    assert len(printed["files"]) == 3 * len(FIGURES) + 2


def test_tables_of_several_scenarios_and_fabrics_say_whose_they_are(tmp_path: Path, capsys) -> None:
    one = make_run(tmp_path, Recipe("none", 1.0, steps=2))
    other = make_run(tmp_path, Recipe("none", 1.0, 1, 2, scenario="other", hash="f" * 16))
    report([one, other], tmp_path / "r")
    fabric = json.loads((other / "manifest.json").read_text())["fabric"]
    assert f"other on {fabric}" in capsys.readouterr().out
    report([other], tmp_path / "alone")
    assert " on " not in capsys.readouterr().out


def test_a_comparison_is_drawn_again_with_its_own_baseline_and_margin(tmp_path: Path) -> None:
    names, seeds = ("none", "topk-0.15"), (1, 2)
    runs = [make_run(tmp_path, Recipe(name, 1.0, s, 2)) for name in names for s in seeds]
    listed = {"runs": [{"dir": str(path)} for path in runs]}
    (tmp_path / "comparison.json").write_text(json.dumps(listed))
    (tmp_path / "compared.json").write_text('{"baseline": "topk-0.15", "margin": 0.25}')
    report([tmp_path], None)
    page = (tmp_path / "report.html").read_text()
    assert "as fast as topk-0.15" in page and "the margin 0.25," in page
    report(runs, tmp_path / "r")
    page = (tmp_path / "r" / "report.html").read_text()
    assert "as fast as none" in page and "the margin 0.005," in page
