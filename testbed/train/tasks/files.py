"""Finding and reading the standard files of data sets."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from testbed.errors import InputError


def read(
    data: Path | None, name: str, *, task: str, folders: tuple[str, ...], source: str
) -> bytes:
    """Contents of file ``name`` (or ``name.gz``) in ``data`` or one of its usual ``folders``.

    Raises InputError that says which file to put where, and where it comes from (``source``).
    """
    if data is None:
        raise InputError(
            f"task {task!r} needs its files",
            where="train.data",
            hint=f"Set train.data to a directory that holds {name} and its companions ({source})",
        )
    for folder in (data, *(data / part for part in folders)):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
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
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path.name, str(error)) from error
