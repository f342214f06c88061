"""Tasks: labelled images, their description for models, and the standard files of data sets."""

from __future__ import annotations

import gzip
import zlib
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from testbed.errors import InputError
from testbed.registry import Registry
from testbed.user_files import data_of

if TYPE_CHECKING:
    from torch import Tensor


Samples = tuple["Tensor", "Tensor"]
"""``x`` float32 (count, channels, height, width) and ``y`` int64 (count,), both contiguous."""


class Task(Protocol):
    """Labelled images in two sets. The same on every node and for every seed of a run."""

    def train_set(self) -> Samples:
        """Return the samples to learn from. Raises InputError when a file is missing or damaged."""
        ...

    def test_set(self) -> Samples:
        """Return the samples that accuracy is measured on; they never overlap ``train_set``."""
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


MAX_BYTES = 1 << 30
"""Largest size of a file, packed and unpacked; the largest of these data sets has 154 MB."""


def read(
    data: Path | None, name: str, *, task: str, folders: tuple[str, ...], source: str
) -> bytes:
    """Contents of file ``name`` (or ``name.gz``) in ``data`` or one of its usual ``folders``.
    Raises InputError that says which file to put where, and where it comes from (``source``)."""
    if data is None:
        raise InputError(
            f"task {task!r} needs its files",
            where="train.data",
            hint=f"Set train.data to a directory that holds {name} and its companions ({source})",
        )
    for folder in (data, *(data / part for part in folders)):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.exists():
                return _contents(path)
    raise InputError(
        f"task {task!r} needs {name}, which is not in {data}",
        where="train.data",
        hint=f"Put {name} (or {name}.gz) into {data}; it is one of the files of {source}",
    )


def damaged(name: str, reason: str) -> InputError:
    """The error for a file that is not what it should be."""
    return InputError(
        f"{name} is not a file of its data set: {reason}",
        where="train.data",
        hint="Fetch the file again",
    )


def _contents(path: Path) -> bytes:
    data = data_of(path, MAX_BYTES)
    if path.suffix != ".gz":
        return data
    try:
        with gzip.open(BytesIO(data)) as file:
            whole = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path.name, str(error)) from error
    if len(whole) > MAX_BYTES:
        raise damaged(path.name, f"it has more than {MAX_BYTES >> 20} MiB unpacked")
    return whole
