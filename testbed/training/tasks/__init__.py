"""Tasks that ship: the data that is learned. Names are known without loading torch or any data."""

from __future__ import annotations

from testbed.training.tasks.base import Samples, Task, TaskClass, tasks
from testbed.training.tasks.datasets import (
    Cifar10,
    Cifar100,
    Digits,
    Mnist,
    Synthetic,
    SyntheticCifar,
)

__all__ = ["Samples", "Task", "TaskClass", "tasks"]


for _task in (Digits, Synthetic, SyntheticCifar, Mnist, Cifar10, Cifar100):
    tasks.add(_task.name, _task)
