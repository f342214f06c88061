"""Files in folders of others: a sentence for everything that is no file, too large, or no text; logs that go where they should."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

from testbed.errors import ExperimentError, InputError

_NOBODY = 65_534
"""Whose root's files are where a server of files lets nobody be root."""
_END_BYTES = 1 << 16


def data_of(path: Path, most_bytes: int, hint: str | None = None) -> bytes:
    """The bytes of a regular file. Raises InputError, also for what would never end, such as a pipe.

    ``hint``: what to name instead.
    """
    try:
        # without waiting: opening a pipe that nobody writes to would
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            kind = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(kind):
                what = "a directory" if stat.S_ISDIR(kind) else "not a regular file"
                raise InputError(f"this is {what}", where=str(path), hint=hint)
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(most_bytes + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except ValueError:
        raise InputError("this is no name of a file", where=repr(str(path))) from None
    if len(data) > most_bytes:
        raise InputError(f"larger than {most_bytes >> 20} MiB", where=str(path), hint=hint)
    return data


def text_of(path: Path, most_bytes: int, hint: str | None = None) -> str:
    """The UTF-8 text of a file. Raises InputError, with the line that is none."""
    data = data_of(path, most_bytes, hint)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"this is not UTF-8 text: byte 0x{data[error.start]:02x}", where=f"{path}:{line}", hint=hint
        ) from None  # fmt: skip
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError("this is a binary file", where=f"{path}:{line}", hint=hint)
    return text


def log_in(folder: Path, name: str) -> IO[bytes]:
    """Open a log in a run's own folder, to append to it. Raises OSError.

    Whoever owns a folder above may have put another in the place of this one, with links in it. Raises
    ExperimentError for a folder that this process's user has not made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return os.fdopen(_opened(folder, name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")


def last_line_in(folder: Path, name: str) -> str:
    """What such a log ends with; empty where there is none, or nothing in it."""
    try:
        with os.fdopen(_opened(folder, name, os.O_RDONLY | os.O_NONBLOCK), "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _END_BYTES))
            lines = log.read(_END_BYTES).decode(errors="replace").strip().splitlines()
    except (OSError, ExperimentError):
        return ""
    return lines[-1] if lines else ""


def _opened(folder: Path, name: str, flags: int) -> int:
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(place).st_uid not in (os.geteuid(), _NOBODY):
            raise ExperimentError(f"{folder} is not the folder any more that was made for this run")
        return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644, dir_fd=place)
    finally:
        os.close(place)
