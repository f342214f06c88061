"""Tasks: labelled images, their description for models, and the standard files of data sets."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPException
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from testbed.errors import InputError, MachineError
from testbed.registry import Registry
from testbed.user_files import PinnedFolder, data_of

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


@dataclass(frozen=True, slots=True)
class Download:
    """A file as servers have it."""

    name: str
    size: int
    """Bytes."""
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} bytes, sha256 {self.sha256})"


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The standard files of a data set: which are read, and which downloads they come from."""

    source: str
    """The data set's name."""
    folders: tuple[str, ...]
    """Where files may lie in the directory of data sets, beside in it itself; fetched ones go to
    the first."""
    servers: tuple[str, ...]
    """URLs of folders, ending in a slash; each has all downloads."""
    downloads: tuple[Download, ...]
    sums: Mapping[str, str]
    """SHA-256 of every file that is read, by name, unpacked."""

    def find(self, data: Path, name: str) -> Path | None:
        """Where file ``name``, or its ``.gz``, lies in the directory of data sets."""
        for folder in (data, *(data / part for part in self.folders)):
            for path in (folder / name, folder / f"{name}.gz"):
                if path.exists():
                    return path
        return None

    def missing(self, data: Path) -> list[str]:
        """Names of the files that are not there. Raises InputError for one that is not what it
        should be."""
        paths = {name: self.find(data, name) for name in self.sums}
        for name, path in paths.items():
            if path is not None:
                _check(path, _contents(path), self.sums[name])
        return [name for name, path in paths.items() if path is None]

    def fetch(self, data: Path, servers: Sequence[str] = ()) -> None:
        """Bring what is missing into the directory of data sets: from a download that lies in it,
        else from a server. Raises MachineError where none has it; InputError for a file that is
        there and damaged."""
        wanted = set(self.missing(data))
        for download in self.downloads:
            names = {download.name.removesuffix(".gz")} if _is_single(download) else wanted
            if not names & wanted:
                continue
            own = data / download.name
            raw = data_of(own, MAX_BYTES) if own.exists() else None
            if raw is not None:
                _check(own, raw, download.sha256)
            self._place(data, download, raw or self._received(data, download, servers))
        if left := self.missing(data):
            raise MachineError(f"the downloads of {self.source} lack {', '.join(left)}")

    def _received(self, data: Path, download: Download, servers: Sequence[str]) -> bytes:
        reasons = []
        for server in servers or self.servers:
            try:
                return _received(server + download.name, download)
            except (OSError, HTTPException, ValueError) as error:
                reasons.append(f"{server + download.name}: {error}")
        raise MachineError(
            f"{download.name} of {self.source} cannot be fetched here ({'; '.join(reasons)})",
            fix=f"Put into {data}, and call this again: {'; '.join(map(str, self.downloads))}",
        )

    def _place(self, data: Path, download: Download, raw: bytes) -> None:
        """Write the files of a download, whose sum is right, into the first folder."""
        folder = data / self.folders[0]
        folder.mkdir(parents=True, exist_ok=True)
        pinned = PinnedFolder(folder.resolve())
        if _is_single(download):
            pinned.write(download.name, raw)
            return
        with tarfile.open(fileobj=BytesIO(raw)) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if member.isfile() and name in self.sums:
                    file = archive.extractfile(member)
                    assert file is not None
                    pinned.write(name, file)


def _is_single(download: Download) -> bool:
    """Return whether the download is one file that is read; else it is an archive of them."""
    return not download.name.endswith((".tar.gz", ".tgz"))


_PATIENCE_S = 30.0


def _received(url: str, download: Download) -> bytes:
    """The content at ``url``. Raises OSError, HTTPException or ValueError where it is not to be
    had, or is another."""
    from urllib.request import urlopen

    with urlopen(url, timeout=_PATIENCE_S) as response:
        raw: bytes = response.read(download.size + 1)
    actual = sha256(raw).hexdigest()
    if actual != download.sha256:
        raise ValueError(f"what came has the sha256 {actual}")
    return raw


def _check(path: Path, raw: bytes, expected: str) -> None:
    """Raises InputError where a file has another SHA-256 than expected."""
    actual = sha256(raw).hexdigest()
    if actual != expected:
        raise damaged(str(path), f"its sha256 is {actual}, not {expected}")


def read(data: Path | None, name: str, *, task: str, files: DataFiles) -> bytes:
    """Contents of file ``name`` (or ``name.gz``) in ``data`` or one of its usual folders. Raises
    InputError that says which file to put where, and what brings it there."""
    return _contents(_path(data, name, task, files))


def check_data(task: str, data: Path | None) -> None:
    """Raises InputError as ``read`` where a file that the task needs is not there. Opens none."""
    files = getattr(tasks.get(task, where="train.task"), "files", None)
    if isinstance(files, DataFiles):
        for name in files.sums:
            _path(data, name, task, files)


def _path(data: Path | None, name: str, task: str, files: DataFiles) -> Path:
    if data is None:
        raise InputError(
            f"task {task!r} needs its files",
            where="train.data",
            hint=f"Set train.data to a directory that holds {name} and its companions "
            f"({files.source}); `testbed data fetch {task} --data DIR` brings them there",
        )
    path = files.find(data, name)
    if path is not None:
        return path
    raise InputError(
        f"task {task!r} needs {name}, which is not in {data}",
        where="train.data",
        hint=f"Put {name} (or {name}.gz) into {data}; it is one of the files of {files.source}, "
        f"which `testbed data fetch {task} --data {data}` brings there",
    )


def damaged(name: str, reason: str) -> InputError:
    """The error for a file that is not what it should be."""
    return InputError(
        f"{name} is not a file of its data set: {reason}",
        where="train.data",
        hint="Remove it, and fetch it again",
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
