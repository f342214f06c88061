"""Summaries, table, figures and report of jobs, against jobs whose figures are known."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from link_pauses import NODES
from synthetic_job import Job, make_job
from synthetic_run import Recipe, make_run

from analysis import job_tables
from analysis.figures.job import MOST_NODES, job_bytes
from analysis.load import load, load_all
from analysis.report import write_report
from analysis.series import NO_PHASE, edges, lengths, phases_s, shares
from testbed.cli.exec import _present
from testbed.errors import InputError
from testbed.fidelity.summary import summarise_job
from testbed.fidelity.verdict import Verdict
from testbed.records.run_directory import read_json
from testbed.runner.exec.run import Executed, early_change
from testbed.runner.exec.trial import ExecTrial
from testbed.runner.trial import TrialOutcome
from testbed.scenario import load as scenario_load

FEW = Verdict("degraded", ["too little of something"])


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("out")
    return [
        make_job(out, Job("fp32")),
        make_job(out, Job("bf16", megabytes=1.0, marked=False, verdict=FEW)),
    ]


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def report(jobs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of both, the folder."""
    return write_report(jobs, tmp_path_factory.mktemp("report"))[-1].parent


def test_of_many_nodes_those_are_drawn_whose_links_carried_most_in_any_run() -> None:
    """In the order of the scenario."""

    def run(**more: int) -> Any:
        carried = {f"n{number}": 100 + number for number in range(MOST_NODES + 4)} | more
        nodes = {name: {"up_bytes": size, "down_bytes": 5} for name, size in carried.items()}
        return SimpleNamespace(algorithm="x", summary={"nodes": nodes})

    runs = [run(n0=9000), run(n2=8000), run()]
    drawn = [*dict.fromkeys(row["node"] for row in job_bytes.data(runs))]
    assert drawn == ["n0", "n2", *(f"n{number}" for number in range(6, MOST_NODES + 4))]
    up = [row["megabytes"] for row in job_bytes.data(runs)
          if (row["node"], row["direction"]) == ("n0", "up")]  # fmt: skip
    assert up == [0.009, 0.0001, 0.0001]


def test_a_marked_job_is_summed_up_from_its_marks(jobs: list[Path]) -> None:
    found = read_json(jobs[0] / "summary.json")
    assert (found["steps"], found["steps_by"], found["confidence"]) == (20, "marks", 1.0)
    assert (found["algorithm"], found["seed"], found["verdict"]) == ("fp32", 0, "valid")
    assert found["values"] == pytest.approx({"loss": 1.5 / 20})
    assert found["step_s"] == pytest.approx(lengths(load(jobs[0])).mean())
    assert 0 < found["communication_share"] < 1


def test_bytes_are_the_links(jobs: list[Path]) -> None:
    nodes = read_json(jobs[0] / "summary.json")["nodes"]
    assert list(nodes) == list(NODES)
    assert nodes["worker-1"]["up_bytes"] == pytest.approx(21.7 * 2e6, rel=0.01)
    assert nodes["worker-1"]["statuses"] == [0]


def test_where_links_were_not_sampled_bytes_are_the_interfaces(jobs: list[Path], tmp_path: Path) -> None:  # fmt: skip
    bare = Path(shutil.copytree(jobs[0], tmp_path / "bare"))
    (bare / "links.jsonl").unlink()
    found = summarise_job(bare)
    assert found["nodes"]["worker-0"] == {"up_bytes": 7, "down_bytes": 9, "statuses": [0]}
    assert (found["communication_share"], found["verdict"]) == (None, "valid")


def test_a_job_without_marks_has_its_steps_from_the_links(jobs: list[Path]) -> None:
    marked, unmarked = (summarise_job(path) for path in jobs)
    assert unmarked["steps_by"] == "traffic"
    assert unmarked["steps"] in range(18, 21)
    assert unmarked["values"] == {}
    assert unmarked["step_s"] < marked["step_s"]
    assert (unmarked["verdict"], unmarked["reasons"]) == ("degraded", FEW.reasons)


def test_dilated_jobs_are_told_in_model_time(tmp_path: Path, jobs: list[Path]) -> None:
    slow, fast = summarise_job(make_job(tmp_path, Job(dilation=4.0))), summarise_job(jobs[0])
    for key in ("time_s", "step_s", "step_median_s"):
        assert slow[key] == pytest.approx(fast[key] / 4)
    assert slow["communication_share"] == pytest.approx(fast["communication_share"])
    assert slow["wall_s"] == fast["wall_s"]
    slowly, quickly = (phases_s(load(path)) for path in (tmp_path / slow["dir"], jobs[0]))
    assert slowly == pytest.approx({name: took / 4 for name, took in quickly.items()})


def test_a_job_that_never_got_to_a_step_is_summed_up_too(tmp_path: Path) -> None:
    path = make_job(tmp_path, Job(steps=1, marked=False))
    found = read_json(path / "summary.json")
    assert (found["steps"], found["steps_by"], found["step_s"]) == (0, None, None)
    assert found["steps_said"].startswith("Steps were not found")
    assert write_report([path], tmp_path / "report")[-1].exists()


def test_links_are_busy_for_the_part_of_a_step_that_is_not_computed(jobs: list[Path]) -> None:
    run = load(jobs[0])
    assert shares(run) == pytest.approx(1 - 0.4 / lengths(run), abs=0.2)
    assert len(edges(run)) == 21


def test_phases_are_means_and_what_is_left(jobs: list[Path]) -> None:
    marked, unmarked = (load(path) for path in jobs)
    found = phases_s(marked)
    assert list(found) == ["compute", "exchange", NO_PHASE]
    assert found["compute"] == pytest.approx(0.4)
    assert sum(found.values()) == pytest.approx(lengths(marked).mean())
    assert phases_s(unmarked) == {}


def test_the_table_compares_with_the_first_label(jobs: list[Path]) -> None:
    first, second = job_tables.rows(load_all(jobs))
    assert first["speedup"] == 1.0
    assert second["speedup"] == pytest.approx(first["step_s"] / second["step_s"])
    assert list(first) == list(second)
    for row, path in zip((first, second), jobs, strict=True):
        nodes = read_json(path / "summary.json")["nodes"].values()
        for key in ("up_bytes", "down_bytes"):
            assert row[key] == pytest.approx(sum(node[key] for node in nodes) / len(nodes), abs=1)
    assert [len(job_tables.cells_of(row)) for row in (first, second)] == [
        len(job_tables.HEADINGS)
    ] * 2
    assert job_tables.cells_of(second)[3] == "inferred (1.00)"
    assert job_tables.rich_table([first, second]).row_count == 2


def test_the_report_has_everything_in_one_page(report: Path, jobs: list[Path]) -> None:
    page = (report / "report.html").read_text()
    assert "testbed exec scenario.yaml" in page
    assert load(jobs[1]).known.reason.split(":")[0] in page
    assert "python train.py --hook bf16" in page
    assert "too little of something" in page
    for name in ("job_steps", "job_phases", "job_values", "job_bytes", "fidelity"):
        assert read(report / "figures" / f"{name}.csv"), name
    rows = read(report / "table.csv")
    assert [row["algorithm"] for row in rows] == ["fp32", "bf16"]


def test_step_times_and_rates_share_an_axis(report: Path) -> None:
    rows = read(report / "figures" / "job_steps.csv")
    steps = [row for row in rows if (row["what"], row["run"]) == ("step", "0")]
    assert len(steps) == 20
    assert all(float(s["value"]) == pytest.approx(float(s["to_s"]) - float(s["from_s"])) for s in steps)  # fmt: skip
    asked = [float(row["value"]) for row in rows if row["what"] == "asked"]
    assert min(asked) < 20
    assert max(asked) > 100


def test_jobs_and_runs_of_ours_are_not_drawn_together(jobs: list[Path], tmp_path: Path) -> None:
    ours = make_run(tmp_path, Recipe(steps=3, scenario="four", hash="0123456789ab"))
    with pytest.raises(InputError, match="testbed exec"):
        load_all([jobs[0], ours])


def test_a_job_lasts_until_the_last_of_its_processes_has_ended() -> None:
    """Whatever its rank."""
    written: list[dict[str, Any]] = []
    slots = [SimpleNamespace(node=f"worker-{rank}", local_rank=0) for rank in range(3)]
    members = [
        SimpleNamespace(
            slot=slot,
            rank=rank,
            started_ns=10**9,
            ended_ns=ended_s * 10**9,
            status=0,
            end_requested=False,
        )
        for rank, (slot, ended_s) in enumerate(zip(slots, (4, 9, 6), strict=True))
    ]
    trial: Any = SimpleNamespace(
        _marks=SimpleNamespace(close=lambda: None, heard=Queue(), left_out={}, strangers=0),
        group=SimpleNamespace(members=members),
        specs={slot.node: SimpleNamespace(name=slot.node, role="worker", rank=0) for slot in slots},
        directory=SimpleNamespace(event=lambda *about: written.append(about[-1])),
        seconds=0.0,
        _seconds=lambda ns: ns / 1e9 - 1.0,
    )
    ExecTrial._write(trial)
    assert trial.seconds == 8.0
    assert [(record["started_s"], record["ended_s"]) for record in written] == [
        (0.0, 3.0), (0.0, 8.0), (0.0, 5.0),
    ]  # fmt: skip


def test_links_were_looked_at_until_the_last_of_them_was() -> None:
    links: Any = SimpleNamespace(to_json=lambda: {"links": [{"to_s": to_s} for to_s in (3, 5, 4)]})
    assert TrialOutcome(links=links).until_s == 5.0
    assert TrialOutcome().until_s == 0.0


def test_a_job_whose_links_have_no_samples_is_told_by_its_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_job(tmp_path, Job(steps=4))
    (path / "links.jsonl").write_text("")
    summary = summarise_job(path)
    assert summary["communication_share"] is None
    _present(Executed(path, summary), as_json=False)
    said = capsys.readouterr().err
    assert f"4 steps (marked), median {summary['step_median_s']:.3f} s\n" in said


def test_a_job_without_steps_says_why_and_what_marks_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_job(tmp_path, Job(marked=False))
    (path / "links.jsonl").write_text("")
    _present(Executed(path, summarise_job(path)), as_json=False)
    assert (
        "Steps were not found: the links' records are too few. `mark.step()` after each step of "
        "the job would mark them\n"
    ) in capsys.readouterr().err


@pytest.mark.parametrize(("at", "said"), [("1 s", True), ("3 s", False), (None, False)])
def test_links_that_change_before_a_job_sends_are_said(
    tmp_path: Path, at: str | None, said: bool
) -> None:
    change = f"{{kind: step, links: [all], at: {at}, rate: 5 Mbit/s}}" if at else ""
    (tmp_path / "s.yaml").write_text(
        "name: s\nnodes: {worker: {role: worker, count: 2}}\n"
        "links: {default: {up: {rate: 9 Mbit/s, queue: 50 ms}, down: {rate: 9 Mbit/s, "
        f"queue: 50 ms}}}}}}\nevents: [{change}]\n"
    )
    timeline = scenario_load.load(tmp_path / "s.yaml", trains=False).timeline()
    records = [
        {"kind": "change", "due_s": 1.0},
        *(
            {"kind": "sample", "from_s": from_s, "delivered_bits": bits}
            for from_s, bits in ((0.5, 0.0), (1.5, 800.0), (2.0, 5e5), (2.5, 5e5))
        ),
    ]
    note = early_change(timeline, records)
    assert (note is not None) == said
    if note:
        assert "changed after 1 s" in note and "after 2 s: with --await-begin" in note
    assert early_change(timeline, records[:3]) is None, "a job that sends nothing"
