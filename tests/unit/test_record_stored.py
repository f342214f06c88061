"""Events that stay in their files say the same as those that are read at once, and take little memory."""

from __future__ import annotations

import gc
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from synthetic_job import Job, make_job
from synthetic_run import Recipe, make_run

from testbed.errors import InputError
from testbed.fidelity.service_curve import followed, groups
from testbed.fidelity.summary import summarise, summarise_job
from testbed.records import run_directory as directories
from testbed.records import stored
from testbed.records.run_directory import read_events
from testbed.records.stored import Joined, Stored, by_number


@pytest.fixture
def left_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(stored, "OPEN", 2)


def test_events_are_the_same(tmp_path: Path, left_in_files: None) -> None:
    run = make_run(tmp_path, Recipe(steps=30))
    found = read_events(run)
    assert all(isinstance(events, Stored) for events in found.values())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(directories, "IN_MEMORY_BYTES", 1 << 40)
        whole = read_events(run)
    assert {kind: list(events) for kind, events in found.items()} == whole
    steps = found["step"]
    assert (len(steps), steps[7], steps[-1]) == (120, whole["step"][7], whole["step"][-1])
    assert steps[5:9] == whole["step"][5:9]
    assert list(read_events(run, ["evaluation"])) == ["evaluation"]


def test_no_more_files_are_open_than_may_be(tmp_path: Path, left_in_files: None) -> None:
    """A server and four workers have one each; two may be open, and none when nobody wants them any more."""
    run = make_run(tmp_path, Recipe(steps=5))
    events = read_events(run)
    for at in range(5):
        for own in events.values():
            assert own[min(at, len(own) - 1)] and own[-1]
            assert opened(run) <= 2
    assert opened(run) > 0
    del events, own
    gc.collect()
    assert opened(run) == 0


def opened(folder: Path) -> int:
    """How many files below ``folder`` this process has open."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    targets = [link.readlink() for link in links if link.is_symlink()]
    return sum(target.is_relative_to(folder.resolve()) for target in targets)


def test_summaries_are_the_same(tmp_path: Path) -> None:
    run, job = make_run(tmp_path / "run", Recipe(steps=30)), make_job(tmp_path / "job", Job())
    whole = summarise(run), summarise_job(job)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(directories, "IN_MEMORY_BYTES", 0)
        assert (summarise(run), summarise_job(job)) == whole


def test_what_is_kept_of_a_record(tmp_path: Path, left_in_files: None) -> None:
    """Of 400 steps of four workers, with the rounds' groups: parsed, each would be 2 kB and more."""
    run = make_run(tmp_path, Recipe(steps=400))
    names = {0: "server"} | {n + 1: f"worker-{n}" for n in range(4)}
    tracemalloc.start()
    try:
        events = read_events(run)
        assert sum(1 for _ in groups(*followed(events), names)) == 800
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2000 * 100 + 300_000


def test_a_line_that_is_cut_off_is_left_out_and_nonsense_is_named(
    tmp_path: Path, left_in_files: None
) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    path = folder / "worker-0.jsonl"
    path.write_text('{"kind":"step","step":1}\n{"kind":"st')
    assert list(read_events(tmp_path)["step"]) == [{"kind": "step", "step": 1}]
    path.write_text('{"kind":"step","step":1}\n[]\n')
    with pytest.raises(InputError, match=r"worker-0\.jsonl:2"):
        read_events(tmp_path)


def test_records_by_number_keep_their_order() -> None:
    def record(step: int, name: str) -> dict[str, Any]:
        return {"step": step, "name": name}

    first = [record(2, "a"), record(1, "b"), record(2, "c")]
    second = Joined([record(3, "d")], [record(2, "e")])
    found = [tuple("".join(r["name"] for r in part) for part in parts) for parts in by_number(first, second)]  # fmt: skip
    assert found == [("b", ""), ("ac", "e"), ("", "d")]
    assert list(by_number([], [])) == []
    assert json.dumps(list(second)) == json.dumps([second[0], second[-1]])
    with pytest.raises(IndexError):
        second[2]
