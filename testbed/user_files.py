"""Files in folders of others: a sentence for everything that is no file, too large, or no text; logs that go where they should."""

from __future__ import annotations

import errno
import os
import stat
import threading
import weakref
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from shutil import copyfileobj
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


class PinnedFolder:
    """A folder that is kept open: whoever owns one above may put another in its place later.

    Nothing in it is reached through a link. Methods raise OSError.
    """

    def __init__(self, path: Path, above: int | None = None) -> None:
        """``above``: the descriptor of the folder that ``path`` is in."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, dir_fd=above)
        weakref.finalize(self, os.close, self.descriptor)

    def folder(self, name: str) -> PinnedFolder:
        """A folder in it, made where it is not there."""
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=self.descriptor)
        return PinnedFolder(Path(name), self.descriptor)

    def names(self) -> list[str]:
        """The names of everything in it."""
        return sorted(os.listdir(self.descriptor))  # noqa: PTH208 - it has a descriptor, no path

    def write(self, name: str, data: bytes | IO[bytes]) -> None:
        """Write a file with ``data``, or what is read from it, replacing what has its name in one move.

        The data is on disk before its name is.
        """
        beside = f".{name}.{os.getpid()}-{threading.get_ident()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(beside, flags, 0o644, dir_fd=self.descriptor)
        try:
            with os.fdopen(file, "wb") as opened:
                copyfileobj(BytesIO(data) if isinstance(data, bytes) else data, opened)
                opened.flush()
                os.fsync(file)
            os.replace(beside, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            os.unlink(beside, dir_fd=self.descriptor)
            raise

    def copy(self, name: str, to: PinnedFolder) -> None:
        """Copy a regular file into another folder; nothing happens where there is none."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(name, flags, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):  # a link; a socket
                return
            raise
        try:
            if stat.S_ISREG(os.fstat(file).st_mode):
                with os.fdopen(file, "rb", closefd=False) as opened:
                    to.write(name, opened)
        finally:
            os.close(file)


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
