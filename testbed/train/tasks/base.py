"""The seam of tasks: labelled images, and what a model needs to know of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from testbed.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

Samples = tuple["Tensor", "Tensor"]
"""``x`` float32 (count, channels, height, width) and ``y`` int64 (count,), both contiguous."""


class Task(Protocol):
    """Labelled images in two sets. The same on every node and for every seed of a run."""

    def train_set(self) -> Samples:
        """What is learned from. Raises InputError when a file is missing or damaged."""
        ...

    def test_set(self) -> Samples:
        """What accuracy is measured on; never overlaps ``train_set``."""
        ...


class TaskClass(Protocol):
    """How a task is made: ``cls(data)``, cheap. Its shape is known without data."""

    name: str
    inputs: tuple[int, int, int]
    """Channels, height, width."""
    classes: int

    def __call__(self, data: Path | None) -> Task:
        """The task; ``data`` is the directory of its files, if it needs any."""
        ...


tasks: Registry[TaskClass] = Registry("task", "narrows.tasks")
