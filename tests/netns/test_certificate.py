"""A replay's certificate, and what it says when somebody tampers with the links meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from netns_rig import MBIT
from verdict_rig import accepted_run

from testbed.links.tc import htb
from testbed.links.tc.netlink import NetlinkChannel
from testbed.links.tc.parameters import LEAVES, pace
from testbed.records.run_directory import read_jsonl
from testbed.runner import link_replay as replaying
from testbed.runner.node_events import HostWatch
from testbed.runner.session import Session
from testbed.scenario.load import load

pytestmark = pytest.mark.timed
SECONDS = 3.0
QUEUE = 100_000
Tamper = Callable[[Session, Callable[[float], None]], None]
"""Gets the session, and what sleeps until a time after t0."""

SCENARIO = f"""
name: certified
nodes: {{server: {{role: server}}, worker: {{role: worker, count: 1}}}}
links:
  default: {{up: {{rate: 20 Mbit/s, queue: {QUEUE} B}}, down: {{rate: 20 Mbit/s, queue: {QUEUE} B}}}}
events:
  - {{kind: trace, links: [server], direction: down, file: steps.csv, at_end: hold}}
congestion: cubic
"""
STEPS = [20, 40] * 5
"""Mbit/s, every second."""


@pytest.fixture
def certify(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Tamper | None], tuple[dict[str, Any], Path]]:
    """Replays, with ``tamper`` at work from t0 on; returns the certificate and its directory."""
    steps = "".join(f"{n},{rate}\n" for n, rate in enumerate(STEPS))
    (tmp_path / "steps.csv").write_text("time_s,rate_mbit_s\n" + steps)
    path = tmp_path / "certified.yaml"
    path.write_text(SCENARIO)

    def run(tamper: Tamper | None) -> tuple[dict[str, Any], Path]:
        sessions: list[Session] = []
        threads: list[threading.Thread] = []
        perform = replaying.LinkReplayTrial._perform

        class Watch(HostWatch):
            """Begins to tamper when the watching begins, at t0."""

            def __init__(self, t0_ns: int, write: Callable[[dict[str, Any]], None]) -> None:
                super().__init__(t0_ns, write)

                def until(time_s: float) -> None:
                    time.sleep(max(0.0, t0_ns / 1e9 + time_s - time.monotonic()))

                if tamper is not None:
                    threads.append(threading.Thread(target=tamper, args=(sessions[0], until)))
                    threads[0].start()

        def perform_with_session(trial: replaying.LinkReplayTrial) -> None:
            sessions.append(trial.session)
            perform(trial)

        monkeypatch.setattr(replaying.LinkReplayTrial, "_perform", perform_with_session)
        monkeypatch.setattr(replaying, "HostWatch", Watch)
        done = replaying.replay(
            load(path), "netns", tmp_path, SECONDS, quiet=True, keep_failed=False
        )
        for thread in threads:
            thread.join(10)
        return json.loads((done.directory / "certificate.json").read_text()), done.directory

    return run


@pytest.mark.judged
def test_a_replay_leaves_its_certificate(certify) -> None:
    found, directory = certify(None)
    assert accepted_run(directory, int(found["verdict"] == "invalid")) == found["verdict"]
    assert found["format"] == 1
    ends = {(link["link"], link["direction"]) for link in found["links"]}
    assert ends == {(node, way) for node in ("server", "worker-0") for way in ("up", "down")}
    for link in found["links"]:
        assert link["changes"]["faults"] == []
        assert link["watch"]["mismatches"] == []
        assert link["watch"]["failure"] is None
        assert link["busy"]["share"] > 0.5
        assert link["changes"]["applied"] == link["changes"]["expected"]
    moving = next(link for link in found["links"] if link["changes"]["expected"])
    assert (moving["link"], moving["direction"]) == ("server", "down")
    assert moving["changes"]["expected"] >= SECONDS - 1
    assert {(way["node"], way["peer"]) for way in found["ways"]} == {
        ("server", None), ("worker-0", None),
    }  # fmt: skip
    assert all(0 < way["least_ms"] < 20 for way in found["ways"])
    assert found["host"]["idle_share"] is not None
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["verdict"], summary["reasons"]) == (found["verdict"], found["reasons"])
    kinds = {record["kind"] for record in read_jsonl(directory / "links.jsonl")}
    assert kinds >= {"sample", "change", "host"}


def change_class(place: Any, rate_bits: int) -> None:
    with NetlinkChannel(place.port.netns) as channel:
        channel.send(htb.set_class(place.port.index, pace(rate_bits)))


def test_links_that_somebody_tampers_with(certify) -> None:
    def tamper(session: Session, until: Callable[[float], None]) -> None:
        worker, server = session.places["worker-0"], session.places["server"]
        until(0.5)
        change_class(worker, round(1.03 * 20 * MBIT))
        with NetlinkChannel(worker.nic.netns) as channel:
            channel.send(htb.set_leaf(worker.nic.index, LEAVES[0], QUEUE // 2))
        until(2 + 0.3)  # after a change: it is undone until the next
        change_class(server, (60 - STEPS[2]) * MBIT)

    found, directory = certify(tamper)
    assert found["verdict"] == "invalid"
    wrong = {
        (link["link"], link["direction"]): link["watch"]["mismatches"] for link in found["links"]
    }
    assert wrong[("server", "up")] == []
    (rate,) = wrong[("worker-0", "down")]
    assert (rate["what"], rate["asked"], rate["held"]) == ("rate", 20 * MBIT, 20_600_000)
    assert rate["from_s"] < 1.0
    assert rate["to_s"] > SECONDS - 0.5
    (queue,) = wrong[("worker-0", "up")]
    assert (queue["what"], queue["asked"], queue["held"]) == ("queue", QUEUE, QUEUE // 2)
    (undone,) = wrong[("server", "down")]
    assert {undone["asked"], undone["held"]} == {20 * MBIT, 40 * MBIT}
    assert 2.1 < undone["from_s"] < undone["to_s"] < SECONDS + 0.1
    said = " ".join(found["reasons"])
    for end in ("worker-0 down", "worker-0 up", "server down"):
        assert f"for {end}, not the" in said
    reasons = [d for d in found["disturbed"] if d["reason"] == "read_back"]
    assert {end for d in reasons for end in d["ends"]} == {
        "worker-0 down", "worker-0 up", "server down",
    }  # fmt: skip
    kinds = [record["kind"] for record in read_jsonl(directory / "links.jsonl")]
    assert kinds.count("mismatch") == 3
    assert "disturbed" in kinds


def test_an_agent_that_stands_still(certify) -> None:
    def tamper(session: Session, until: Callable[[float], None]) -> None:
        until(1.9)
        os.kill(session.fabric.agent.pid, signal.SIGSTOP)
        until(2.45)
        os.kill(session.fabric.agent.pid, signal.SIGCONT)

    found, _ = certify(tamper)
    assert found["verdict"] == "invalid"
    said = " ".join(found["reasons"])
    assert "a change of server down came" in said
    unseen = re.search(r"nobody looked at worker-0 up for ([\d.]+) s", said)
    assert unseen is not None and 0.4 < float(unseen[1]) < 2, said
    late = [d for d in found["disturbed"] if d["reason"] == "late"]
    assert any(d["from_s"] <= 2.1 and d["to_s"] >= 2.4 for d in late)
