"""Nodes that an earlier run has gone on without, or left paused, are there for the next one, or it does not begin."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from queue import Queue
from subprocess import Popen
from types import SimpleNamespace
from typing import Any

import pytest
from virtual_setup import job

from testbed.errors import ExperimentError
from testbed.runner import cross_traffic_node, node_process
from testbed.runner import session as module
from testbed.runner.control_channel import JsonLines
from testbed.runner.cross_traffic_node import FlowEnds
from testbed.runner.node_events import NodeEventScheduler
from testbed.runner.node_process import NodeProcess
from testbed.runner.session import LostWorkerBudget, Session
from testbed.scenario.node_timeline import Flow, NodeChange
from testbed.topology import NodeSpec

HOSTS = [NodeSpec(f"noise-{n}", "host", "host", n, n) for n in range(3)]


def without(gone: list[str], back: set[str]) -> tuple[Any, list[str]]:
    """A session in which hosts were killed, of which some come back; and a list of who is started again."""
    session: Any = object.__new__(Session)
    started: list[str] = []
    there = {spec.name for spec in HOSTS} - set(gone)
    session.specs, session.lost_worker_budget, session._looked = HOSTS, LostWorkerBudget(), 0.0
    session.killed = dict.fromkeys(gone, "the scenario's event at 1 s killed it")

    def receive(patience_s: float) -> tuple[str, dict[str, Any]] | None:
        coming = [name for name in started if name in back - there]
        if not coming:
            time.sleep(patience_s)
            return None
        there.add(coming[0])
        return coming[0], {"type": "hello"}

    agent = SimpleNamespace(alive=lambda: True)
    session.fabric = SimpleNamespace(restart=started.append, dead=dict, agent=agent)
    session.control = SimpleNamespace(receive=receive, connected=lambda: sorted(there))
    return session, started


def test_hosts_that_were_killed_are_started_again() -> None:
    session, started = without(["noise-0", "noise-2"], {"noise-0", "noise-2"})
    session.restart_lost_nodes()
    assert sorted(started) == ["noise-0", "noise-2"]
    assert session.killed == {}


def test_who_does_not_come_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_S", 0.5)
    session, started = without(["noise-0", "noise-2"], {"noise-0"})
    began = time.monotonic()
    with pytest.raises(ExperimentError, match=r"^not back: noise-2$"):
        session.restart_lost_nodes()
    assert time.monotonic() - began >= 0.5
    assert sorted(started) == ["noise-0", "noise-2"]


def test_nodes_whose_pause_outlasts_the_run_go_on_at_its_end() -> None:
    frozen, silent = set[str](), set[str]()
    written: Queue[dict[str, Any]] = Queue()
    session: Any = object.__new__(Session)
    session.paused, session.lost_worker_budget, session._staffed = (
        set(),
        LostWorkerBudget(),
        ["worker-0", "worker-1"],
    )
    session.fabric = SimpleNamespace(pause=frozen.add, resume=frozen.remove)
    session.control = SimpleNamespace(pause_liveness=silent.add, resume_liveness=silent.remove)
    nodes = ("worker-0", "worker-1")
    changes = [NodeChange(0.0, node, "pause") for node in nodes]
    changes += [NodeChange(1e6, node, "resume") for node in nodes]
    disturbances = NodeEventScheduler(session, changes, time.monotonic_ns(), written.put)
    assert [written.get(timeout=60.0)["node"] for _ in nodes] == [*nodes]
    assert frozen == silent == {*nodes}
    disturbances.stop()
    assert frozen == silent == session.paused == set(), "their silence is a loss again"
    assert written.empty()


def test_a_node_that_goes_on_is_told_of_its_links_again() -> None:
    """Samples of links are not sent to a paused node, which would not read them."""
    session: Any = object.__new__(Session)
    session.paused, session._staffed = set(), ["worker-0"]
    session.lost_worker_budget = LostWorkerBudget()
    order: list[str] = []
    session.fabric = SimpleNamespace(
        pause=lambda _: order.append("stop"), resume=lambda _: order.append("go on")
    )
    session.control = SimpleNamespace(
        pause_liveness=lambda _: order.append("not missed"),
        resume_liveness=lambda _: order.append("missed"),
    )
    session.pause("worker-0")
    assert session.paused == {"worker-0"} and order == ["not missed", "stop"]
    session.resume("worker-0")
    assert session.paused == set() and order[2:] == ["go on", "missed"]


def test_as_many_workers_may_be_lost_in_the_next_run() -> None:
    session, started = without(["noise-0"], {"noise-0"})
    budget = session.lost_worker_budget = LostWorkerBudget(["noise-0", "noise-1"], 1)
    assert budget.lose("noise-0") and budget.lose("noise-0") and not budget.lose("noise-1")
    session.restart_lost_nodes()
    assert started == ["noise-0"] and session.lost_worker_budget.lost == []
    session.restart_lost_nodes()
    assert started == ["noise-0"], "it is there: nothing is started twice"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[NodeProcess, JsonLines]]:
    """The process of a host, and the session's end of its control connection."""
    monkeypatch.setattr(node_process, "METRICS_PORT", 0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        own = JsonLines(socket.create_connection(listening.getsockname()))
        session = JsonLines(listening.accept()[0])
    session.socket.settimeout(60.0)
    yield NodeProcess("noise-0", "host", own), session
    own.close()
    session.close()


def host_job(trial: str, sinks: list[dict[str, Any]]) -> dict[str, Any]:
    """A host's ``job`` message in one of a session's trials."""
    return {
        "type": "job",
        "job": job(0, 1, "none").to_json(),
        "role": "host",
        "peers": {},
        "addresses": {},
        "labels": {"run": trial},
        "traffic": {"sources": [], "sinks": sinks},
    }


def test_a_host_that_was_ready_too_late_takes_the_next_job(
    host: tuple[NodeProcess, JsonLines],
) -> None:
    """It was started again as a trial ended: nobody told it to start."""
    process, session = host
    start_ns = time.monotonic_ns()
    for message in (
        host_job("first", []),
        host_job("second", []),
        {"type": "start", "t0_ns": start_ns},
    ):
        process.inbox.put(message)
    process._do(process.inbox.get())
    said = iter(session)
    assert [next(said) for _ in range(2)] == [
        {"type": "ready", "run": "first"},
        {"type": "ready", "run": "second"},
    ]
    assert process.inbox.empty() and process.assignment is not None
    assert process.assignment.labels == {"run": "second"}
    assert process.assignment.clock.t0_ns == start_ns


def test_who_was_ready_for_an_earlier_run_is_waited_for() -> None:
    session: Any = object.__new__(Session)
    coming = [
        ("noise-0", {"type": "ready", "run": "first"}),
        ("noise-1", {"type": "ready", "run": "second"}),
        ("noise-0", {"type": "ready", "run": "second"}),
        ("noise-0", {"type": "alive"}),
    ]
    session.lost_worker_budget, session._look = LostWorkerBudget(), lambda: None
    session.control = SimpleNamespace(receive=lambda _: coming.pop(0))
    taken: list[str] = []

    def take(node: str, message: dict[str, Any]) -> None:
        taken.append(f"{node} {message['run']}")

    session.await_all("ready", ["noise-0", "noise-1"], 60.0, take, "second")
    assert taken == ["noise-0 first", "noise-1 second", "noise-0 second"]
    assert len(coming) == 1


def test_servers_of_a_job_that_never_started_end_before_the_next(
    host: tuple[NodeProcess, JsonLines], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one's listen at the same ports."""
    process, session = host
    started: list[Popen[str]] = []

    def start(command: list[str]) -> Popen[str]:
        started.append(launch(command))
        return started[-1]

    launch = cross_traffic_node._start
    monkeypatch.setattr(cross_traffic_node, "_start", start)
    monkeypatch.setattr(cross_traffic_node, "server", lambda _: ["sleep", "600"])
    monkeypatch.setattr(cross_traffic_node.shutil, "which", lambda name: f"/usr/bin/{name}")
    with socket.create_server(("127.0.0.1", 0)) as sink:
        flow = Flow("bulk", "noise-1", "noise-0", "tcp", None, None, 1, 0.0, float("inf"))
        ends = FlowEnds(flow, "127.0.0.1", "127.0.0.1", sink.getsockname()[1])
        process.inbox.put(host_job("first", [ends.to_json()]))
        process.inbox.put(host_job("second", []))
        process.inbox.put({"type": "start", "t0_ns": time.monotonic_ns()})
        process._do(process.inbox.get())
    said = iter(session)
    assert [next(said)["type"] for _ in range(2)] == ["ready", "ready"]
    assert [server.poll() is not None for server in started] == [True]
