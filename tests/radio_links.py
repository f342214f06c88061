"""A scenario whose workers follow traces of radio links in Mahimahi's format, with outages, each its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testbed.traces.generate import markov, write_mahimahi

LEVELS = (
    (0, 0.12, 0.5, 1, 2, 4), (0, 0.24, 1, 4), (0, 2, 8, 14, 20), (0, 0.5, 5, 20, 35), (0, 0.12, 1, 10, 35),
)  # fmt: skip
"""Mbit/s, of which one holds for 100 ms or longer."""
SCENARIO = """
name: radio
nodes: {server: {role: server}, worker: {role: worker, count: WORKERS}}
links: {default: {up: {rate: 20 Mbit/s, queue: 100 ms}, down: {rate: 20 Mbit/s, queue: 100 ms}}}
events: EVENTS
train: {task: digits, model: mlp, optimizer: {name: sgd, lr: 0.1}, stop: {steps: 10}}
algorithms: [none]
"""


def write(folder: Path, *, workers: int, seconds: float, seed: int) -> Path:
    """The scenario's file; traces beside it."""
    events: list[dict[str, Any]] = []
    for n in range(workers):
        levels, name = LEVELS[(seed + n) % len(LEVELS)], f"radio-{n}.down"
        trace = markov(levels=levels, stay=0.75, seconds=seconds, every_s=0.1, seed=100 * seed + n)
        (folder / name).write_text(write_mahimahi(trace))
        events.append({"kind": "trace", "links": [f"worker-{n}"], "direction": "both", "file": name, "at_end": "loop"})  # fmt: skip
    path = folder / "radio.yaml"
    text = SCENARIO.replace("WORKERS", str(workers)).replace("EVENTS", json.dumps(events))
    path.write_text(text)
    return path
