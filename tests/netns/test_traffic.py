"""Cross traffic and events of nodes in whole runs: every algorithm meets the same, and the run goes on."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command_rig import Command, ours, settle
from crossed_rig import TRAFFIC, of, records, write

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms, which meet the same traffic."""
    folder, before = tmp_path_factory.mktemp("crossed"), ours()
    path = write(folder, traffic=TRAFFIC, steps=26, algorithms="none, topk-0.15")
    out, err = Command(folder, "run", path, "--json").accept(150)
    assert [run["steps"] for run in json.loads(out)["runs"]] == [26, 26], err
    assert settle(before) == set()
    return folder


@pytest.mark.timed
@pytest.mark.judged
def test_every_algorithm_meets_the_same_traffic(crossed: Path) -> None:
    met = records(crossed, "traffic.jsonl")
    assert len(met) == 2
    for bursts in met:
        (bulk,) = of(bursts, "bulk", "sent")
        (arrived,) = of(bursts, "bulk", "received")
        assert bulk["due_s"] == 0.5 and bulk["bytes"] >= arrived["bytes"] > 500_000
        assert bulk["tests"] == [arrived["cookie"]]
        (steady,) = of(bursts, "steady", "sent")
        seconds = steady["stop_s"] - steady["start_s"]
        assert steady["bytes"] * 8 * 1442 / 1400 / seconds == pytest.approx(4e6, rel=0.15)
        (steadily,) = of(bursts, "steady", "received")
        assert steadily["bytes"] == steadily["packets"] * 1400 > 0
        assert steadily["packets"] + steadily["lost"] <= steady["packets"]
    first, second = ([(burst["due_s"]) for burst in of(bursts, "bursty", "sent")] for bursts in met)
    shared = min(len(first), len(second))
    assert shared > 2 and first[:shared] == second[:shared]
    assert len({later - sooner for sooner, later in pairwise(first)}) > 1


@pytest.mark.timed
@pytest.mark.judged
def test_the_racks_link_carries_what_its_members_send(crossed: Path) -> None:
    runs = sorted(crossed.glob("runs/*"))
    for run, bursts in zip(runs, records(crossed, "traffic.jsonl"), strict=True):
        evidence = json.loads((run / "evidence.json").read_text())
        held = {
            (link["link"], link["direction"]): link["class_bytes"] for link in evidence["links"]
        }
        (bulk,) = of(bursts, "bulk", "received")
        assert held["a", "up"] > bulk["bytes"]
        assert held["a", "down"] > sum(b["bytes"] for b in of(bursts, "bursty", "received"))
        manifest = json.loads((run / "manifest.json").read_text())
        assert {"a", "noise-0", "noise-1"} <= {link["link"] for link in manifest["links"]}


def delivered(links: list[dict[str, Any]], from_s: float, to_s: float) -> float:
    """Bits in the samples between two times."""
    samples = [record for record in links if record["kind"] == "sample"]
    inside = [s for s in samples if from_s <= s["from_s"] and s["to_s"] <= to_s]
    assert inside
    return sum(sample["delivered_bits"] for sample in inside)


@pytest.mark.timed
@pytest.mark.judged
def test_a_paused_worker_is_not_taken_for_dead_and_a_killed_host_comes_back(
    tmp_path: Path, nothing_left: set[str]
) -> None:
    """The pause is longer than the 6 s after which a silent node is given up. What a paused host has started pauses, too."""
    paused = "{kind: pause, nodes: [worker-1], at: 1 s, for: 7500 ms}"
    killed = "{kind: kill, nodes: [noise-1], at: 2500 ms, restart_after: 1 s}"
    quiet = "{kind: pause, nodes: [noise-1], at: 1200 ms, for: 800 ms}"
    path = write(tmp_path, traffic=TRAFFIC, events=f"{paused}, {quiet}, {killed}", steps=26)
    out, err = Command(tmp_path, "run", path, "--json").accept(100)
    assert json.loads(out)["runs"][0]["steps"] == 26, err
    (links,) = records(tmp_path, "links.jsonl")
    made = [record for record in links if record["kind"] == "node"]
    assert [(record["node"], record["action"]) for record in made] == [
        ("worker-1", "pause"), ("noise-1", "pause"), ("noise-1", "resume"), ("noise-1", "kill"),
        ("noise-1", "restart"), ("worker-1", "resume"),
    ]  # fmt: skip
    for record, due_s in zip(made, (1.0, 1.2, 2.0, 2.5, 3.5, 8.5), strict=True):
        assert record["due_s"] == due_s <= record["applied_s"]
    sent = [
        record
        for record in links
        if (record.get("link"), record.get("direction")) == ("noise-1", "up")
    ]
    assert delivered(sent, 0.6, 1.1) > 1e6
    assert delivered(sent, made[1]["applied_s"] + 0.2, 1.95) < 1e5
    (written,) = tmp_path.glob("runs/*/certificate.json")
    found = json.loads(written.read_text())
    assert (found["nodes"]["expected"], found["nodes"]["applied"]) == (6, 6)
    assert found["measures"]["node_lateness_ms"]["deviation"] < 250
    (events,) = records(tmp_path, "events/worker-0.jsonl")
    waits = [event["wait_s"] for event in events if event["kind"] == "step"]
    assert max(waits) > 6.5
    (bursts,) = records(tmp_path, "traffic.jsonl")
    (again,) = of(bursts, "steady", "sent")
    assert again["due_s"] == 0.0 and again["start_s"] >= 3.5
    cut, whole = of(bursts, "steady", "received")
    assert not cut["complete"] and whole["complete"] and cut["bytes"] > 0


@pytest.mark.timed
@pytest.mark.judged
def test_a_host_that_stays_dead_is_there_for_the_next_run(
    tmp_path: Path, nothing_left: set[str]
) -> None:
    event = "{kind: kill, nodes: [noise], at: 1 s}"
    path = write(tmp_path, traffic=TRAFFIC, events=event, algorithms="none, topk-0.15", steps=12)
    out, err = Command(tmp_path, "run", path, "--json").accept(150)
    assert [run["steps"] for run in json.loads(out)["runs"]] == [12, 12], err
    for bursts in records(tmp_path, "traffic.jsonl"):
        assert of(bursts, "bursty", "sent")


def test_a_killed_worker_ends_the_run_and_the_event_is_named(
    tmp_path: Path, nothing_left: set[str]
) -> None:
    path = write(tmp_path, events="{kind: kill, nodes: [worker-1], at: 2 s}", steps=500)
    code, _, err = Command(tmp_path, "run", path).finish(60)
    assert code == 1
    assert re.search(r"'worker-1' was lost at step \d+.*: the scenario's event at 2 s killed", err)
