"""``testbed messages`` as a user runs it: a run on real links, its messages, and these again on the same links."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_rig import Command, Write
from training_run import STEPS, Trained

pytestmark = [pytest.mark.judged, pytest.mark.root, pytest.mark.timeout(300)]

WAIT_S = 150.0
"""Another run on this machine may have to end first."""


def messages(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "testbed", "messages", *arguments, "--json"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_runs_messages_are_sent_again_to_the_byte(
    tmp_path: Path, trained: Trained, nothing_left: set[str]
) -> None:
    was, where = trained.runs["qsgd-4bit"].entry, trained.scenario
    found = messages(tmp_path, "record", was["dir"], "--out", "job.jsonl")
    assert (
        found["messages"] == 2 * 2 * STEPS and found["bytes"] == was["bytes_up"] + was["bytes_down"]
    )

    file = str(tmp_path / "job.jsonl")
    command = Command(
        tmp_path / "played", "messages", "replay", file, where, "--json", "--quiet", figures=True
    )
    command.until(lambda: list(tmp_path.glob("played/runs/*/events/worker-1.jsonl")), WAIT_S)
    libraries = Path("/proc", str(command.node("worker-0")), "maps").read_text()
    assert "pydantic" in libraries and "torch" not in libraries
    out, err = command.accept(WAIT_S)
    now = json.loads(out)
    assert (now["bytes_up"], now["bytes_down"]) == (was["bytes_up"], was["bytes_down"]), err
    assert now["measures"]["byte_identity"]["state"] == "valid", now["reasons"]
    completion = now["measures"]["completion"]
    assert completion["groups"] >= 2 * STEPS and "entangled" not in completion["not_judged"]
    assert not [reason for reason in now["reasons"] if "counted frames" in reason]
    (directory,) = command.runs()
    assert (directory / "certificate.json").exists() and (directory / "fidelity.png").exists()
    assert (directory / "messages.jsonl").read_text() == (tmp_path / "job.jsonl").read_text()


def test_a_ring_on_nodes_of_other_names(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    """All nodes listen and connect to each other, and each sends while it receives."""
    names = ["x", "y", "z"]
    lines: list[dict[str, Any]] = [
        {"format": "narrows-messages", "version": 1, "nodes": [{"name": name} for name in names]}
    ]
    for place, name in enumerate(names):
        after, before = names[(place + 1) % 3], names[place - 1]
        for turn in range(6):
            wait = [2 * turn - 1] if turn else []
            common = {"node": name, "bytes": 300_000, "tag": turn}
            lines.append({**common, "op": "send", "peer": after, "after": wait})
            lines.append({**common, "op": "receive", "peer": before})
    (tmp_path / "ring.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    file = str(tmp_path / "ring.jsonl")
    command = Command(tmp_path, "messages", "replay", file, scenario(), "--json", "--quiet")
    out, err = command.accept(WAIT_S)
    found = json.loads(out)
    assert found["messages"] == 18, err
    assert found["bytes_up"] + found["bytes_down"] == 2 * 12 * 300_000
    completion = found["measures"]["completion"]
    assert completion["not_judged"]["entangled"] > 0, completion
    # six hops of 300 kB at 40 Mbit/s, the server's link at 20 Mbit/s from 1 s on
    assert found["time_s"] > 6 * 300_000 * 8 / 40e6
