"""A model spread over two servers, on a real fabric and in virtual time: the same payloads, the same parameters."""

from __future__ import annotations

import json
from pathlib import Path

from command_rig import trained

from testbed.records.run_directory import read_events

STEPS, WORKERS = 6, 2
SCENARIO = f"""
name: shards
nodes: {{server: {{role: server, count: 2}}, worker: {{role: worker, count: {WORKERS}}}}}
links:
  default: {{up: {{rate: 50 Mbit/s, queue: 50 ms}}, down: {{rate: 50 Mbit/s, queue: 50 ms}}}}
train: {{task: digits, model: mlp, batch: 32, optimizer: {{name: sgd, lr: 0.1}}, pace: 200 ms,
  stop: {{steps: {STEPS}}}, evaluate_every: 3}}
algorithms: [topk-0.05]
congestion: cubic
"""


def assert_two_servers_share_a_model(folder: Path, fabric: str) -> None:
    """What is sent and learnt on ``fabric`` is what is in virtual time; bytes add up at both servers."""
    directory, virtual_directory = (
        Path(run["dir"])
        for name in (fabric, "sim")
        for run in trained(folder / name, SCENARIO, name, 170.0)
    )
    real, virtual = read_events(directory), read_events(virtual_directory)
    sent = [
        {(step["node"], step["step"]): step["payload_crc"] for step in found["step"]}
        for found in (real, virtual)
    ]
    assert sent[0] == sent[1]
    assert len(sent[0]) == WORKERS * STEPS
    accuracies = [[e["accuracy"] for e in found["evaluation"]] for found in (real, virtual)]
    assert accuracies[0] == accuracies[1]
    assert len(accuracies[0]) == 2
    assert {round_["node"] for round_ in real["round"]} == {"server-0", "server-1"}
    summary = json.loads((directory / "summary.json").read_text())
    for measure in ("byte_identity", "frame_identity"):
        assert summary["measures"][measure]["state"] == "valid", summary["reasons"]
    done = json.loads((directory / "evidence.json").read_text())["nodes"]
    hashes = {
        name: message["summary"]["parameters"] for name, message in done.items() if "worker" in name
    }
    assert len(hashes) == WORKERS
    assert len(set(hashes.values())) == 1
