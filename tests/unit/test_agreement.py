"""Controllers that see what all workers met: on the wire, and in a run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isnan
from pathlib import Path

import pytest
from test_control_virtual import played
from virtual_run import SCENARIO, carried_out

from testbed.compatibility import resolve
from testbed.control.base import Observation, controller_seed, controllers, replay_decisions
from testbed.errors import WireError
from testbed.records.run_directory import read_events
from testbed.training.averaging import ControllerStats, agreed

SEEN = Observation(step=3, epoch=1, delay_s=0.25, accuracy=0.5, bytes_sent=10, density=0.1)


def test_a_note_travels_behind_its_payload() -> None:
    body = ControllerStats.of(SEEN).append_to(memoryview(b"gradient"))
    assert len(body) == len(b"gradient") + 16
    payload, note = ControllerStats.split_from(body)
    assert bytes(payload) == b"gradient" and note == ControllerStats(0.25, 0.5)


@pytest.mark.parametrize("size", [0, 15])
def test_too_few_bytes(size: int) -> None:
    with pytest.raises(WireError, match=f"{size} B are too few"):
        ControllerStats.split_from(bytes(size))


def test_the_largest_delay_and_the_mean_accuracy() -> None:
    assert agreed(
        [ControllerStats(0.1, 0.25), ControllerStats(0.3, 0.75), ControllerStats(0.2, 0.5)]
    ) == ControllerStats(0.3, 0.5)
    assert isnan(agreed([ControllerStats(0.1, 0.2), ControllerStats()]).delay_s), (
        "one has nothing to tell yet"
    )


def test_upon_a_step() -> None:
    assert (
        ControllerStats().merged_with(SEEN) is None
        and ControllerStats(0.5, 0.75).merged_with(None) is None
    )
    assert ControllerStats(0.5, 0.75).merged_with(SEEN) == replace(SEEN, delay_s=0.5, accuracy=0.75)


@pytest.mark.parametrize("name", ["adatopk-agreed", "dc2-da2", "dc2-da5"])
def test_all_workers_have_the_same_density(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = resolve(name)
    first, second = played(row, monkeypatch).values()
    assert [step["density"] for step in first] == [step["density"] for step in second]
    assert first[0]["controller"] is None, "nothing to see before the first step has been told"
    for mine, theirs, before in zip(first[1:], second[1:], first, strict=False):
        assert mine["controller"]["step"] == before["step"]
        assert mine["controller"]["delay_s"] == theirs["controller"]["delay_s"] >= before["delay_s"]
    make = partial(controllers.get(row.controller), seed=controller_seed(1, 0), **row.options)
    assert replay_decisions(first, make).exact and replay_decisions(second, make).exact


def test_without_agreement_workers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = played(resolve("adatopk"), monkeypatch).values()
    assert [step["density"] for step in first] != [step["density"] for step in second]


@pytest.mark.parametrize("agree", [True, False])
def test_who_agrees_draws_alike(agree: bool, tmp_path: Path) -> None:
    row = f"{{name: walk, from: random-walk, agree: {str(agree).lower()}}}"
    (entry,) = carried_out(tmp_path, SCENARIO.replace("[none, topk-0.01]", f"[{row}]")).runs
    steps = read_events(Path(entry["dir"]))["step"]
    first, second = (
        [s["density"] for s in steps if s["node"] == f"worker-{rank}"] for rank in range(2)
    )
    assert len(set(first)) > 1 and (first == second) is agree
