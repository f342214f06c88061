"""The worked example of ``docs/how-to/adding-a-task.md`` does what the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from virtual_setup import Stage

from testbed.scenario.model import Train
from testbed.training.data import on_device, open_task
from testbed.training.models.base import models
from testbed.training.tasks.base import tasks

torch.set_num_threads(1)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "adding-a-task.md"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's Python, run from top to bottom, with what it registers taken back afterwards."""
    monkeypatch.setattr(tasks, "_own", dict(tasks._own))
    monkeypatch.setattr(models, "_own", dict(models._own))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "example"})
    yield


def test_the_task_is_one(example: None) -> None:
    task = open_task(Train(task="bars"))
    for samples, count in ((task.train_set(), 2000), (task.test_set(), 1000)):
        x, _ = on_device(samples, torch.device("cpu"), "train.task")
        assert x.shape == (count, 1, 16, 16)


def test_it_trains(example: None) -> None:
    stage = Stage(2, "adatopk", task="bars", model="pair", stop={"steps": 60}, evaluate_every=30)
    played = stage.play()
    assert played.summaries["server"]["accuracy"] > 0.9
    assert played.summaries["server"]["parameters"] == played.summaries["worker-1"]["parameters"]
