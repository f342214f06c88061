"""Two hundred nodes on one machine: a run starts, makes all its steps, and leaves nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from command_rig import Command
from verdict_rig import accepted_run

from testbed.cgroups import KIND
from testbed.journal import journals
from testbed.records.run_directory import read_events, read_json

pytestmark = [pytest.mark.nightly, pytest.mark.timed, pytest.mark.judged, pytest.mark.timeout(1200)]

WORKERS, STEPS = [f"worker-{rank}" for rank in range(199)], 50
SCENARIO = f"""
name: two-hundred
nodes: {{server: {{role: server}}, worker: {{role: worker, count: {len(WORKERS)}}}}}
links:
  default: {{up: {{rate: 2 Mbit/s, queue: 100 ms}}, down: {{rate: 2 Mbit/s, queue: 100 ms}}}}
  server: {{up: {{rate: 20 Mbit/s, queue: 500 ms}}, down: {{rate: 20 Mbit/s, queue: 500 ms}}}}
train: {{task: digits, model: mlp, gradients: none, pace: 1 s, stop: {{steps: {STEPS}}}}}
peer_timeout: 60 s
algorithms: [topk-0.01]
congestion: cubic
"""


def test_two_hundred_nodes_make_their_steps(
    tmp_path: Path, state: Path, nothing_left: set[str]
) -> None:
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    command = Command(tmp_path, "run", str(tmp_path / "scenario.yaml"), "--fabric", "netns")
    command.until(command.steps, 300)
    made = [entry for journal in journals() for entry in journal.entries]
    groups = {Path(entry["path"]) for entry in made if entry["kind"] == KIND}
    assert {group.name for group in groups} == {"server", *WORKERS}
    assert all(group.exists() for group in groups)
    code, _, err = command.finish(900)
    (directory,) = command.runs()
    assert (directory / "summary.json").exists(), err
    accepted_run(directory, code)
    steps = Counter(step["node"] for step in read_events(directory, ["step"])["step"])
    assert steps == dict.fromkeys(WORKERS, STEPS)
    assert read_json(directory / "summary.json")["ended"]
    assert not list(state.glob("*.journal"))
    assert not any(group.exists() or group.parent.exists() for group in groups)
