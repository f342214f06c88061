"""Every algorithm with a server that can be named, in a real worker and server on a virtual clock."""

from __future__ import annotations

from math import isfinite

import pytest
import torch
from virtual_setup import ALGORITHMS, Stage

from testbed.algorithms import PATTERNS
from testbed.compatibility import known, resolve
from testbed.scenario.model import Optimizer, Stop

torch.set_num_threads(1)
STEPS = 4
NAMES = [
    *(row.name for row in known() if row.controller == "fixed" and row.exchange == "ps"),
    *(pattern.example for pattern in PATTERNS if pattern.row.exchange == "ps"),
    "adatopk",
    "none+layers",
    "topk-0.1+qsgd-4bit+layers",
]


@pytest.mark.parametrize("name", NAMES)
def test_it_trains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = resolve(name)
    monkeypatch.setitem(ALGORITHMS, name, row)
    rate = 0.001 if row.down == "sign" else 0.1
    stage = Stage(2, name, stop=Stop(steps=STEPS), optimizer=Optimizer(lr=rate))
    played = stage.play()
    assert len({summary["parameters"] for summary in played.summaries.values()}) == 1
    steps = [step for node in ("worker-0", "worker-1") for step in played.of(node, "step")]
    assert len(steps) == 2 * STEPS
    for step in steps:
        assert isfinite(step["loss"])
        assert 1 <= step["sent_count"] <= step["size"]
    sent = sum(step["bytes_up"] for step in steps)
    received = sum(
        message["bytes"] for one in played.of("server", "round") for message in one["messages"]
    )
    assert sent == received
