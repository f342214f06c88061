"""Records in wall time, all else in model time: a run that took four times as long with dilation 4 looks the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bucket_rig import Plan, make_bucket_run
from synthetic_job import Job, make_job
from synthetic_run import Recipe, make_run

from analysis import job_tables, tables
from analysis.exports import points
from analysis.figures import FIGURES, OF_JOBS, OF_SOME, figures_of
from analysis.figures.timeline import View
from analysis.load import TABLES, Run, load, tabulated
from analysis.trace_events import trace
from testbed.fidelity.summary import summarise, summarise_job
from testbed.fidelity.verdict import Verdict
from testbed.records.events import LinkChanged, UnreliableInterval
from testbed.records.run_directory import read_json, to_json

FACTOR = 4.0
MORE = [
    UnreliableInterval(0.5, 0.75, "stolen").to_json(),
    UnreliableInterval(1.0, 1.5, "read_back", ("server down", "worker-0 up")).to_json(),
    LinkChanged("server", "down", 1.25, 1.265, 10_000_000, 50_000).to_json(),
]
ENDS = {"forward", "backward"}
"""Fields whose lists are of two times."""


def longer(value: Any, name: str = "") -> Any:
    """A record in which everything took ``FACTOR`` times as long; ``name``: of its field."""
    if isinstance(value, dict):
        return {key: longer(each, name if name in ENDS else key) for key, each in value.items()}
    if name == "looks":
        return [[FACTOR * at_s, bits] for at_s, bits in value]
    if isinstance(value, list):
        return [longer(each, name) for each in value]
    timed = name.endswith("_s") or name in ENDS
    return FACTOR * value if timed and isinstance(value, int | float) else value


def dilated(path: Path, folder: Path) -> Path:
    """The run in ``path`` once more, slower, with the dilation that makes it the same."""
    manifest = read_json(path / "manifest.json")
    slow = folder / path.name
    (slow / "events").mkdir(parents=True)
    for name in ("links.jsonl", *(f"events/{file.name}" for file in (path / "events").iterdir())):
        lines = (path / name).read_text().splitlines()
        (slow / name).write_text("".join(to_json(longer(json.loads(x))) + "\n" for x in lines))
    more = {"dilation": FACTOR, "pace_s": longer(manifest["pace_s"], "pace_s")}
    (slow / "manifest.json").write_text(to_json({**manifest, **more}))
    return slow


@pytest.fixture(scope="module", params=["whole", "buckets", "job"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """The same run twice."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "whole":
        path = make_run(folder, Recipe("topk-0.15", 0.15, steps=30))
    elif request.param == "buckets":
        path = make_bucket_run(folder, Plan(steps=4, joined=3))
    else:
        path = make_job(folder, Job(steps=8))
    with (path / "links.jsonl").open("a") as links:
        links.writelines(json.dumps(record) + "\n" for record in MORE)
    slow = dilated(path, folder / "slow")
    summed = summarise_job if request.param == "job" else summarise
    for each in (path, slow):
        (each / "summary.json").write_text(to_json(summed(each, Verdict("degraded"))))
    return [load(path), load(slow)]


def alike(one: Any, other: Any, where: str = "") -> None:
    """Fail where they differ by more than rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            alike(one[key], other[key], f"{where} {key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            alike(mine, theirs, f"{where} {number}")
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-9, nan_ok=True), where
    else:
        assert one == other, where


def without(value: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: each for key, each in value.items() if key not in names}


def test_summaries_are_in_model_time_but_for_one_field(pair: list[Run]) -> None:
    fast, slow = (dict(run.summary) for run in pair)
    assert slow["wall_s"] == pytest.approx(FACTOR * fast["wall_s"])
    alike(without(fast, "wall_s", "dir"), without(slow, "wall_s", "dir"))


def test_figures_show_the_same_but_how_late_this_machine_was(pair: list[Run]) -> None:
    fast, slow = pair
    assert figures_of([fast]) == figures_of([slow])
    drawn = 0
    for module in dict.fromkeys([*FIGURES, *OF_SOME, *OF_JOBS]):
        if fast.is_job != (module in OF_JOBS) and module.NAME != "fidelity":
            continue
        shown, again = module.data([fast]), module.data([slow])
        late = [row.pop("value") for row in shown if row.get("quantity") == "late_ms"]
        later = [row.pop("value") for row in again if row.get("quantity") == "late_ms"]
        alike(late, [late_ms / FACTOR for late_ms in later], "lateness is of the kernel")
        alike(shown, again, module.NAME)
        drawn += bool(shown)
    assert drawn >= 4


def test_tables_and_times_in_doubt_are_the_same(pair: list[Run]) -> None:
    rows = job_tables.rows if pair[0].is_job else tables.rows
    fast, slow = (rows([run]) for run in pair)
    alike(fast, slow)
    assert job_tables.cells_of(fast[0]) if pair[0].is_job else tables.cells_of(fast[0])
    alike(tables.layer_rows(pair[:1]), tables.layer_rows(pair[1:]))
    for end in (None, "server down", "worker-1 up"):
        alike(pair[0].disturbed(end), pair[1].disturbed(end))
    assert pair[0].disturbed() == [(0.5, 0.75), (1.0, 1.5)]


def test_series_that_are_exported_are_the_same(pair: list[Run]) -> None:
    fast, slow = (sorted(map(tuple, points(run)), key=lambda each: each[:2]) for run in pair)
    assert len({series for series, *_ in fast}) > 6
    alike(fast, slow)


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_are_exported_are_the_same(pair: list[Run], name: str) -> None:
    fast, slow = (tabulated(run, name) for run in pair)
    if name == "changes":  # the kernel is told wall rates
        for row in slow:
            row["rate"] /= FACTOR
    apart = ("wall_s", "dilation", "dir") if name == "summary" else ()
    assert fast or name in ("evaluations", "links"), "not every run has them"
    alike([without(row, *apart) for row in fast], [without(row, *apart) for row in slow])


def test_timelines_are_the_same(pair: list[Run]) -> None:
    if pair[0].is_job:
        assert not len(pair[0].steps), "of a job there is none"
        return
    steps = [int(step) for step in pair[0].steps[1:3]]
    fast, slow = (trace(run, steps) for run in pair)
    assert len(fast["traceEvents"]) > 50
    alike(fast["traceEvents"], slow["traceEvents"])
    views = [View(run, tuple(steps), 2).panels() for run in pair]
    alike(views[0], views[1])
