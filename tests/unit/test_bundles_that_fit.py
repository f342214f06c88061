"""What preflight finds that a machine needs is what a run's links get, whichever command it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.comm_trace.trace import MessageTrace
from testbed.runner import link_replay, preflight, real_links, run
from testbed.runner.comm_replay import CommReplay
from testbed.runner.exec import run as exec_run
from testbed.runner.exec.launch_spec import LaunchSpec
from testbed.runner.experiment import from_loaded
from testbed.runner.session import Session, shape
from testbed.scenario.load import Loaded, load

MBIT = 1_000_000
TRACE = "time_s,rate_mbit_s\n" + "".join(
    f"{step / 10},{rate}\n" for step, rate in enumerate([50, 500, 50])
)
SCENARIO = """
name: trains
nodes: {server: {role: server}, worker: {role: worker, count: 1}}
links: {default: {up: {rate: 50 Mbit/s, queue: 50 ms}, down: {rate: 50 Mbit/s, queue: 50 ms}}}
algorithms: [none]
"""


class Made(Exception):
    """In place of nodes."""


@pytest.fixture
def trace(tmp_path: Path) -> Loaded:
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    return link_replay.trace_scenario(path)


def held(loaded: Loaded, least: int) -> int:
    """How long the bundles are that the agent is told of."""
    told: list[Any] = []
    agent = SimpleNamespace(prepare=lambda *given: told.append(given))
    session: Any = SimpleNamespace(fabric=SimpleNamespace(agent=agent), cables={}, least=least)
    shape(session, loaded, loaded.timeline(), lambda _: None)
    ((_, _, settings, _),) = told
    segments: int = settings.segments
    return segments


@pytest.mark.parametrize(("per_packet_mbit", "expected"), [(3000, 1), (1500, 2), (720, 4)])
def test_a_run_has_the_bundle_that_preflight_found(
    trace: Loaded, monkeypatch: pytest.MonkeyPatch, per_packet_mbit: int, expected: int
) -> None:
    """Four directions of 500 Mbit/s are 2000 Mbit/s, for which 2857 Mbit/s must be moved."""

    def measured(segments: int, *, fresh: bool = False) -> tuple[int, int]:
        return segments * per_packet_mbit * MBIT, segments * per_packet_mbit * MBIT

    monkeypatch.setattr(preflight.os, "geteuid", lambda: 0)
    monkeypatch.setattr(preflight, "measured", measured)
    ends = trace.timeline().highest_rates()
    assert set(ends.values()) == {500 * MBIT} and len(ends) == 4
    assert held(trace, preflight.check(trace, "netns", filled=True)) == expected


def test_what_a_world_of_its_own_finds_comes_back(
    trace: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Callable[[], int]] = []
    monkeypatch.setattr(preflight.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(preflight, "_check_congestion", lambda _: None)
    monkeypatch.setattr(preflight.user_namespace, "elsewhere", lambda work: found.append(work) or 4)
    assert preflight.check(trace, "netns", filled=True) == 4
    monkeypatch.setattr(preflight.user_namespace, "elsewhere", lambda _: None)
    assert preflight.check(trace, "netns", filled=True) == 1
    assert len(found) == 1


@pytest.mark.parametrize("command", ["replay", "exec", "run", "messages"])
def test_every_command_hands_it_to_its_links(
    trace: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    loaded = load(tmp_path / "s.yaml")
    given: list[int] = []

    def make(*_: Any, least: int, **__: Any) -> Any:
        given.append(least)
        raise Made

    monkeypatch.setenv("NARROWS_STATE", str(tmp_path))
    for module in (preflight, link_replay, exec_run):
        monkeypatch.setattr(module, "check", lambda *_, **__: 4)
    for module in (link_replay, exec_run, real_links):
        monkeypatch.setattr(module, "Session", make)
    monkeypatch.setattr(Session, "__init__", make)
    with pytest.raises(Made):
        if command == "replay":
            link_replay.replay(trace, "netns", tmp_path, 1.0, quiet=True, keep_failed=False)
        elif command == "exec":
            order = LaunchSpec(("true",))
            exec_run.execute(loaded, order, "netns", tmp_path, shown=False, quiet=True)
        elif command == "run":
            run.run(from_loaded(loaded), "netns", tmp_path, quiet=True)
        else:
            run.replay_messages(CommReplay(loaded, MessageTrace({})), "netns", tmp_path, quiet=True)
    assert given == [4]
