"""`python -m analysis` and `testbed report`, where there is little or nothing to draw."""

from __future__ import annotations

import json
from pathlib import Path

from synthetic_run import Recipe, make_run

from analysis import __main__ as command
from analysis.figures import FIGURES
from testbed.cli.report import report


def test_the_module_command_refuses_in_a_sentence(tmp_path: Path, capsys) -> None:
    assert command.main([str(tmp_path), "--out", str(tmp_path / "r")]) == 2
    printed = capsys.readouterr()
    assert "no manifest.json" in printed.err
    assert printed.out == ""


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
