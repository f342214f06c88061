"""A small scenario, carried out in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from testbed.runner.comparison import Comparison
from testbed.runner.experiment import prepare
from testbed.runner.run import run

SCENARIO = """
name: virtual
nodes: {server: {role: server}, worker: {role: worker, count: 2}, noise: {role: host}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, batch: 32, optimizer: {name: sgd, lr: 0.1}, pace: 100 ms,
  stop: {steps: 12}, evaluate_every: 5}
algorithms: [none, topk-0.01]
seeds: [1]
congestion: cubic
events:
  - {kind: step, links: [server], at: 600 ms, rate: 5 Mbit/s}
traffic: [{name: bulk, from: noise, to: server, kind: tcp, at: 200 ms, for: 300 ms}]
"""
EVENTS = "events:\n"
PAUSE = "  - {kind: pause, nodes: [worker-0], at: 300 ms, for: 2 s}\n"
KILL = "  - {kind: kill, nodes: [worker-1], at: 700 ms}\n"


def carried_out(
    folder: Path, text: str = SCENARIO, parallel: int = 1, **options: Any
) -> Comparison:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "virtual.yaml"
    path.write_text(text)
    return run(prepare(path, **options), "sim", folder / "out", quiet=True, parallel=parallel)
