"""Scenarios with racks, cross traffic and events of nodes, and what runs of them have recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from testbed.records.run_directory import read_jsonl

SCENARIO = """
name: crossed
nodes: {{server: {{role: server}}, worker: {{role: worker, count: 2}}, noise: {{role: host, count: 2}}}}
racks:
  a: {{members: [worker, noise-0], up: {{rate: 30 Mbit/s, queue: 50 ms}}, down: {{rate: 60 Mbit/s, queue: 50 ms}}}}
links:
  default: {{up: {{rate: 40 Mbit/s, queue: 50 ms}}, down: {{rate: 40 Mbit/s, queue: 50 ms}}}}
events: [{events}]
traffic: [{traffic}]
train:
  task: digits
  model: mlp
  optimizer: {{name: sgd, lr: 0.1}}
  pace: 150 ms
  stop: {{steps: {steps}}}
  evaluate_every: 20
algorithms: [{algorithms}]
congestion: cubic
"""
TRAFFIC = """
  {name: bulk, from: noise-0, to: server, kind: tcp, congestion: cubic, streams: 2, at: 0.5 s, for: 2 s},
  {name: steady, from: noise-1, to: worker-0, kind: udp, rate: 4 Mbit/s, at: 0 s},
  {name: bursty, from: noise-1, to: noise-0, kind: udp, rate: 8 Mbit/s, on: 300 ms, off: 200 ms,
   timing: exponential, seed: 3, at: 0 s},
"""


def write(
    folder: Path, *, traffic: str = "", events: str = "", steps: int = 30, algorithms: str = "none"
) -> str:
    path = folder / "crossed.yaml"
    path.write_text(
        SCENARIO.format(traffic=traffic, events=events, steps=steps, algorithms=algorithms)
    )
    return str(path)


def records(folder: Path, name: str) -> list[list[dict[str, Any]]]:
    """Of every run, in order."""
    return [list(read_jsonl(path / name)) for path in sorted(folder.glob("runs/*"))]


def of(bursts: list[dict[str, Any]], flow: str, kind: str) -> list[dict[str, Any]]:
    return [burst for burst in bursts if burst["flow"] == flow and burst["kind"] == kind]
