"""``testbed init``: a scenario to start from, with a trace of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.errors import InputError
from testbed.traces import generate, write_csv

Directory = Annotated[Path, typer.Argument(help="Where to; made if it is not there.")]

SCENARIO = "scenario.yaml"
TRACE = "traces/cloud.csv"

TEXT = f"""\
# Check it with `testbed validate {SCENARIO}`, look at it with `testbed plan {SCENARIO}`, then
# `testbed run {SCENARIO}`. Every key is explained in docs/scenario-format.md and the two pages that it names.
name: first
description: Four workers train digits while the server's bandwidth swings.
nodes:
  server: {{role: server}}
  worker: {{role: worker, count: 4}}        # worker-0 to worker-3
links:                                    # `default`, then per group, then per node
  default:
    up: {{rate: 100 Mbit/s, queue: 50 ms}}
    down: {{rate: 100 Mbit/s, queue: 50 ms}}
events:                                   # kinds: trace, step, ramp, outage
  - {{kind: trace, links: [server], direction: both, file: {TRACE}, at_end: loop}}
train:
  task: digits
  model: cnn
  batch: 32
  optimizer: {{name: sgd, lr: 0.1}}
  pace: 200 ms                            # a step's computation is held to this time
  stop: {{steps: 100}}
  evaluate_every: 10
algorithms: [none, topk-0.15, adatopk]    # `testbed algorithms` lists them
seeds: [1]
"""


def init(directory: Directory = Path()) -> None:
    """Write a scenario to start from, and a trace, into DIRECTORY. Nothing is overwritten."""
    trace = generate.token_bucket(
        peak=100, base=55, budget_s=6, busy=0.75, noise=0.08, seconds=60, every_s=1, seed=1
    )
    comment = f"made by testbed.traces.generate.{trace.name}"
    files = {directory / SCENARIO: TEXT, directory / TRACE: write_csv(trace, comment=comment)}
    for path in files:
        if path.exists():
            raise InputError(
                "there is such a file already", where=str(path), hint="Name another directory"
            )
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", where=str(error.filename or directory)
        ) from None
