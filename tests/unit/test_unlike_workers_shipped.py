"""The scenario that ships, whose workers are unlike in everything, in a small form in virtual time; and what is drawn of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_run import carried_out

from analysis.figures import figures_of, label_shares
from analysis.load import load
from testbed.records.run_directory import read_events, read_json
from testbed.runner.manifest_writer import paces_told
from testbed.scenario.load import load as load_scenario

SHIPPED = Path(__file__).parents[2] / "scenarios" / "unlike-workers.yaml"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = SHIPPED.read_text().replace("steps: 150", "steps: 40")
    (entry,) = carried_out(
        tmp_path_factory.mktemp("unlike"), text, algorithms=["topk-0.01"], seeds=[1]
    ).runs
    return Path(entry["dir"])


def test_it_runs_to_its_end(made: Path) -> None:
    summary, events = read_json(made / "summary.json"), read_events(made)
    assert summary["verdict"] == "valid" and summary["steps"] == 40
    assert summary["step_s"] == pytest.approx(summary["expected_step_s"], rel=0.05)
    (away,) = events["away"]
    assert away["node"] == "worker-4" and away["left_s"] >= 5.0 and away["asked_s"] >= 15.0
    slow = [step["pace_s"] for step in events["step"] if step["node"] == "old"]
    others = [step["pace_s"] for step in events["step"] if step["node"] == "worker-0"]
    assert sum(slow) / len(slow) > 2.2 * sum(others) / len(others)


def test_validate_tells_of_paces(made: Path) -> None:
    told = paces_told(load_scenario(SHIPPED))
    assert told is not None and len(told) == 6
    assert told["old"]["usual_s"] == pytest.approx(3 * told["worker-0"]["usual_s"])


def test_labels_are_drawn_where_they_differ(made: Path) -> None:
    runs = [load(made)]
    assert label_shares in figures_of(runs)
    rows = label_shares.data(runs)
    assert len(rows) == 60
    for node in {row["node"] for row in rows}:
        assert sum(row["share"] for row in rows if row["node"] == node) == pytest.approx(1.0)
    axes = label_shares.draw(runs).get_axes()[0]
    assert len(axes.patches) == 60
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == "old"
