"""What ``testbed replay`` takes for a trace, and how it is told which of its columns to follow."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.cli.replay import _load
from testbed.errors import InputError, NodeLost
from testbed.runner import link_replay
from testbed.runner.link_replay import LinkReplayTrial, trace_scenario

TWO = "time_s,a_mbit_s,b_kbit_s\n0,5,7000\n1,6,8000\n"


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.csv"
    path.write_text(TWO)
    return path


def test_a_column_is_chosen(two: Path) -> None:
    with pytest.raises(InputError, match="a_mbit_s"):
        trace_scenario(two)
    loaded = _load(two, None, "b_kbit_s")
    assert loaded.scenario.links["default"].up.rate == 8_000_000
    (trace,) = loaded.traces.values()
    assert trace.rates_bits == (7_000_000, 8_000_000)
    initial = loaded.timeline().initial
    assert {shape.rate_bits for shape in initial.values()} == {7_000_000}


def test_a_format_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_text("1\n2\n1000\n")
    assert len(_load(path, "mahimahi", None).traces) == 1
    with pytest.raises(InputError, match="unknown trace format 'x'"):
        _load(path, "x", None)


def test_links_cannot_follow_every_trace(tmp_path: Path) -> None:
    path = tmp_path / "fast.csv"
    path.write_text("time_ms,rate_mbit_s\n0,5\n0.5,0\n1,7\n1.5,5\n")
    with pytest.raises(InputError, match=r"fast\.csv: 4 points in 2 ms: links cannot be changed"):
        trace_scenario(path)


@pytest.mark.parametrize(("form", "column", "flag"), [("csv", None, "--format"), (None, "a", "--column")])  # fmt: skip
def test_a_scenario_says_itself_what_it_follows(
    tmp_path: Path, form: str | None, column: str | None, flag: str
) -> None:
    with pytest.raises(InputError, match=f"{flag}: .*is a scenario, not a trace"):
        _load(tmp_path / "s.yaml", form, column)


def test_a_slow_trace_has_a_queue_that_can_be_filled(tmp_path: Path) -> None:
    path = tmp_path / "slow.csv"
    path.write_text("time_s,rate_kbit_s\n0,200\n1,0\n2,300\n3,200\n")
    initial = trace_scenario(path).timeline().initial
    assert {shape.queue_bytes for shape in initial.values()} == {20 * 1514}


def test_a_trace_of_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dead.csv"
    path.write_text("time_s,rate_mbit_s\n0,0\n1,0\n")
    with pytest.raises(InputError, match=r"dead\.csv: its rate is 0 throughout"):
        trace_scenario(path)


def test_why_a_replay_ends_is_not_what_its_flows_say_when_they_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE)

    def lost(*_: object, **__: object) -> None:
        raise NodeLost("worker-0", None, "it was killed")

    worker = SimpleNamespace(spec=SimpleNamespace(name="worker-0", peer=1), data_address="")
    trial: Any = object.__new__(LinkReplayTrial)
    trial.session = SimpleNamespace(
        places={"worker-0": worker},
        ahead_ns=lambda _: 0,
        control=SimpleNamespace(send=lambda *_, **__: None),
        networks=SimpleNamespace(switch_address=""),
    )
    trial._seconds = 1.0
    trial._follow = lambda _: None
    said: list[str] = []
    trial.progress = SimpleNamespace(say=said.append)
    trial._longest_trip_s = lambda: 0.0
    trial._wait = lost
    monkeypatch.setattr(link_replay, "_switch_flows", lambda *_: [flow])
    with pytest.raises(NodeLost, match="it was killed"):
        trial._perform()
    assert flow.returncode == -9
    assert said == [
        "1 nodes, both directions, 1 s once all queues are full: over in about 4 s, then the verdict"
    ]
