"""Files that a user names or that lie in folders of others, and what a job's processes print, kept
in ``log/<node>.log``.

A job must not fail, or never end, since nobody reads what it prints: what cannot be shown or kept
is done without.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import tarfile
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from io import BytesIO, FileIO
from pathlib import Path
from shutil import copyfileobj
from typing import IO

from testbed.errors import InputError, printable

_NOBODY = 65_534
"""Whose root's files are where a server of files lets nobody be root."""
_END_BYTES = 1 << 16


def home() -> Path | None:
    """Return this user's home; None without ``HOME`` and an entry in the system's list of users."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def data_of(path: Path, most_bytes: int, hint: str | None = None) -> bytes:
    """The bytes of a regular file. Raises InputError, also for what would never end, such as a
    pipe.

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
        bad = error.object  # without the mark that the text may begin with
        line = bad.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"this is not UTF-8 text: byte 0x{bad[error.start]:02x}",
            where=f"{path}:{line}",
            hint=hint,
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError("this is a binary file", where=f"{path}:{line}", hint=hint)
    return text


class OpenedPath:
    """A path, and what it leads to, kept open: nothing else gets its identity meanwhile."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where there is nothing."""
        self.path = path.absolute()
        self._descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    @property
    def identity(self) -> tuple[int, int]:
        """Its device and inode number."""
        state = os.fstat(self._descriptor)
        return state.st_dev, state.st_ino


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Have errors name a file as the user knows it."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename, error.filename2 = str(path), None
        raise


class PinnedFolder:
    """A folder that is kept open: whoever owns one above may put another in its place later.

    Nothing in it is reached through a link. Methods raise OSError.
    """

    def __init__(self, path: Path, above: int | None = None) -> None:
        """``above``: the descriptor of the folder that ``path`` is in."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._name = path
        self.descriptor = os.open(path, flags, dir_fd=above)
        weakref.finalize(self, os.close, self.descriptor)

    @property
    def path(self) -> Path:
        """A path to it as long as this process holds it, for other processes of this user, too:
        whatever has its name by then. Where there is no Linux, its name."""
        linux = hasattr(os, "O_PATH")
        return Path(f"/proc/{os.getpid()}/fd/{self.descriptor}") if linux else self._name

    def new(self, name: str) -> PinnedFolder:
        """Make a folder in it. Raises FileExistsError where there is something, and PermissionError
        where whoever owns this one has put another in its place before it was opened.

        Of root's no group may write to it, which a list of access rights above could say.
        """
        os.mkdir(name, 0o755 if os.geteuid() == 0 else 0o777, dir_fd=self.descriptor)
        folder = self._opened(name)
        if folder.names() or not folder.is_own():
            raise PermissionError(errno.EPERM, "it was replaced by another folder", name)
        return folder

    def is_own(self) -> bool:
        """Return whether it belongs to whom files that this process makes in it belong to."""
        name = f".own.{os.getpid()}-{threading.get_ident()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=self.descriptor)
        try:
            return os.fstat(file).st_uid == os.fstat(self.descriptor).st_uid
        finally:
            os.close(file)
            os.unlink(name, dir_fd=self.descriptor)

    def folder(self, name: str) -> PinnedFolder:
        """A folder in it, made where it is not there."""
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=self.descriptor)
        return self._opened(name)

    def _opened(self, name: str) -> PinnedFolder:
        opened = PinnedFolder(Path(name), self.descriptor)
        opened._name = self._name / name
        return opened

    def names(self) -> list[str]:
        """The names of everything in it."""
        return sorted(os.listdir(self.descriptor))  # noqa: PTH208 - it has a descriptor, no path

    def write(self, name: str, data: bytes | IO[bytes]) -> None:
        """Write a file with ``data``, or what is read from it, replacing what has its name in one
        move.

        The data is on disk before its name is.
        """
        beside = f".{name}.{os.getpid()}-{threading.get_ident()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(beside, flags, 0o644, dir_fd=self.descriptor)
        try:
            with named(self._name / name):
                with os.fdopen(file, "wb") as opened:
                    copyfileobj(BytesIO(data) if isinstance(data, bytes) else data, opened)
                    opened.flush()
                    os.fsync(file)
                os.replace(beside, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            os.unlink(beside, dir_fd=self.descriptor)
            raise

    def append(self, name: str) -> IO[bytes]:
        """Open a file to append to it, made where it is not there."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(name, flags, 0o644, dir_fd=self.descriptor), "ab")

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


ARCHIVE_BYTES = 64 << 20
"""Most bytes of a working folder that is copied to other hosts."""
LEFT_OUT = frozenset({".git", ".venv", "__pycache__"})
"""Folders of a working folder that are not copied."""


def archive_of(
    folder: PinnedFolder,
    readable: Callable[[os.stat_result], bool],
    left_out: Collection[Path] = (),
    most_bytes: int = ARCHIVE_BYTES,
) -> bytes:
    """Return regular files, links and folders below ``folder`` (the working directory) that are
    ``readable``, as a tar archive; links as links. Raises InputError where that is too much."""
    buffer, here = BytesIO(), Path.cwd()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for top, folders, files, above in os.fwalk(".", dir_fd=folder.descriptor):
            folders[:] = sorted(
                name
                for name in folders
                if name not in LEFT_OUT
                and here / top / name not in left_out
                and _is_readable(name, above, readable)
            )
            for name in (*folders, *sorted(files)):
                path = os.path.normpath(f"{top}/{name}")
                _add(archive, path, name, above, readable, most_bytes)
                if buffer.tell() > most_bytes:
                    raise InputError(
                        f"the working folder has more than {most_bytes >> 20} MiB, and is copied "
                        "to every node of a swarm",
                        where=str(here),
                        hint="Start in a smaller folder, and name folders that every host has "
                        "with --read",
                    )
    return buffer.getvalue()


def _is_readable(name: str, above: int, readable: Callable[[os.stat_result], bool]) -> bool:
    try:
        return readable(os.stat(name, dir_fd=above, follow_symlinks=False))
    except FileNotFoundError:  # gone meanwhile
        return False


def _add(
    archive: tarfile.TarFile,
    path: str,
    name: str,
    above: int,
    readable: Callable[[os.stat_result], bool],
    most_bytes: int,
) -> None:
    """Add what has a name in the folder ``above``, whatever is put in its place meanwhile. Of a
    file that alone is too much, one byte more than that."""
    entry = tarfile.TarInfo(path)
    try:
        state = os.stat(name, dir_fd=above, follow_symlinks=False)
        entry.mode, entry.mtime = stat.S_IMODE(state.st_mode), int(state.st_mtime)
        if stat.S_ISLNK(state.st_mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=above)
            archive.addfile(entry)
        elif stat.S_ISDIR(state.st_mode):
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        elif stat.S_ISREG(state.st_mode):
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, dir_fd=above), "rb") as file:
                state = os.fstat(file.fileno())
                if stat.S_ISREG(state.st_mode) and readable(state):
                    content = file.read(min(state.st_size, most_bytes + 1))
                    entry.size = len(content)
                    archive.addfile(entry, BytesIO(content))
    except FileNotFoundError:  # gone meanwhile
        return


def last_line_in(run: PinnedFolder, name: str) -> str:
    """Return the last line of a log in the folder ``log`` of a run's directory; empty where there
    is none, or nothing in it, and where the folder is not this user's: another has put it there."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        pinned = PinnedFolder(Path("log"), run.descriptor)
        if os.fstat(pinned.descriptor).st_uid not in (os.geteuid(), _NOBODY):
            return ""
        with os.fdopen(os.open(name, flags, dir_fd=pinned.descriptor), "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _END_BYTES))
            lines = log.read(_END_BYTES).decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


_AT_ONCE_BYTES, _LONGEST_BYTES = 1 << 16, 1 << 20
MOST_BYTES = 1 << 30
"""Most bytes that are kept of what a node prints."""
_END = re.compile(rb"(\r*\n|\r+(?![\r\n]|\Z))")
"""A carriage return that came last may belong to a line's end that is still under way."""


def lines(pipe: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines that come: a carriage return ends a line, too, and so does 1 MiB without any
    end.

    Progress bars write nothing but carriage returns for hours.
    """
    parts: list[bytes] = []
    size, broken = 0, False
    while more := os.read(pipe.fileno(), _AT_ONCE_BYTES):
        if parts and parts[-1].endswith(b"\r"):
            size -= len(parts[-1])
            more = parts.pop() + more
        *whole, rest = _END.split(more)
        for text, end in zip(whole[::2], whole[1::2], strict=True):
            line = b"".join([*parts, text])
            if line or (end.endswith(b"\n") and not broken):
                yield line + b"\n"
            parts, size, broken = [], 0, False
        if rest:
            parts.append(rest)
            size += len(rest)
        if size > _LONGEST_BYTES:
            yield b"".join(parts) + b"\n"
            parts, size, broken = [], 0, True
    if line := b"".join(parts).rstrip(b"\r"):
        yield line + b"\n"


class Output:
    """``shown``: whether lines also go to standard output. ``several``: whether nodes have several
    processes. ``most_bytes``: of a node's lines that are kept."""

    def __init__(
        self,
        folder: PinnedFolder,
        width: int,
        *,
        shown: bool,
        several: bool,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._width, self._shown, self._several = width, shown, several
        self._most_bytes = most_bytes
        self._terminal = sys.stdout.isatty()
        self._lock = threading.Lock()
        self._files: dict[str, FileIO] = {}
        self._full: set[str] = set()
        """Nodes of whose lines no more are kept."""
        self.last: dict[tuple[str, int], str] = {}
        """The last line with a letter or a digit in it, by node and local rank."""
        self.failure: str | None = None
        """Why some of it was not kept."""
        self._folder = folder

    def line(self, node: str, local_rank: int, line: bytes) -> None:
        """A line with its end, from any thread."""
        own = f"[{local_rank}] ".encode() if self._several else b""
        whole = own + line
        text = line.decode(errors="replace").strip()
        with self._lock:
            if any(character.isalnum() for character in text):
                self.last[node, local_rank] = text
            self._keep(node, whole)
            if self._shown:
                self._show(f"{node:{self._width}} | {whole.decode(errors='replace')}")

    def close(self) -> None:
        """No more lines."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _opened(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o644, dir_fd=self._folder.descriptor)

    def _keep(self, node: str, line: bytes) -> None:
        if node in self._full:
            return
        try:
            if node not in self._files:
                self._files[node] = FileIO(f"{node}.log", "ab", opener=self._opened)
            file = self._files[node]
            begin = os.fstat(file.fileno()).st_size
            if begin + len(line) > self._most_bytes:
                self._full.add(node)
                self.failure = (
                    f"{node} printed more than {self._most_bytes} bytes: what came after them was "
                    "not kept"
                )
            elif file.write(line) != len(line):  # as much as there was room for
                file.truncate(begin)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.failure = f"not all output of {node} was kept: {error.strerror}"

    def _show(self, text: str) -> None:
        """A terminal gets colours, and nothing else that it would obey."""
        if self._terminal:
            text = printable(text, colours=True)
        encoding = sys.stdout.encoding or "utf-8"
        try:
            sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
            sys.stdout.flush()
        except OSError:  # nobody reads it any more, and nobody shall be told so at the very end
            self._shown = False
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


_GROUPS = "narrows."
"""The beginning of the names of all registries' groups of entry points."""


@cache
def package_paths() -> tuple[Path, ...]:
    """Folders, or files, of the top-level modules of all packages that declare something for any
    registry, but for those on the search path: an installation with ``-e`` leaves them where they
    are, and nodes need them, too."""
    from importlib.metadata import entry_points  # which others who are shown files do without

    points = entry_points()
    groups = (group for group in points.groups if group.startswith(_GROUPS))
    declared = (point for group in groups for point in points.select(group=group))
    names = sorted({point.module.partition(".")[0] for point in declared})
    return tuple(path for name in names for path in _paths(name))


def _paths(name: str) -> Iterator[Path]:
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return
    if spec is not None:
        for path in map(Path, spec.submodule_search_locations or [spec.origin or ""]):
            if path.exists() and str(path.parent) not in sys.path:
                yield path
