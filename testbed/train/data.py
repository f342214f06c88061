"""A task's samples as a job needs them, on the device it computes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import InputError
from testbed.train.seeding import derive
from testbed.train.tasks import Samples, Task, tasks

if TYPE_CHECKING:
    import torch

    from testbed.scenario.model import Train


def open_task(train: Train) -> Task:
    """The task that ``train`` names. Raises InputError for an unknown one."""
    return tasks.get(train.task, where="train.task")(Path(train.data) if train.data else None)


def on_device(samples: Samples, device: torch.device, where: str) -> Samples:
    """``samples`` on ``device``. Raises InputError unless they are what a task promises."""
    import torch

    x, y = samples
    if x.dtype != torch.float32 or y.dtype != torch.int64 or x.dim() != 4 or y.dim() != 1:
        raise InputError(
            f"the task's samples are {x.dtype} {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}",
            where=where,
            hint="x is float32 (count, channels, height, width) and y int64 (count,)",
        )
    if len(x) != len(y) or not len(y):
        raise InputError(f"the task has {len(x)} images and {len(y)} labels", where=where)
    return x.to(device), y.to(device)


def subset(samples: Samples, most: int) -> Samples:
    """At most ``most`` of ``samples``, the same ones every time, whatever their order means."""
    import torch

    x, y = samples
    if len(y) <= most:
        return samples
    generator = torch.Generator().manual_seed(derive(0, "subset"))
    chosen = torch.randperm(len(y), generator=generator)[:most].to(y.device)
    return x[chosen], y[chosen]
