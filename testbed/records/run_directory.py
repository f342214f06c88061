"""The directory of a run's records, and writing into it so that a kill at any instant costs at most
a line.

runs/<utc>_<scenario>_<algorithm>_s<seed>_<hash8>/
├─ manifest.json   scenario.yaml   compose.yaml (docker)   profile.json (if named)
├─ evidence.json   certificate.json   summary.json (at the end)
├─ events/<role>-<rank>.jsonl      links.jsonl      traffic.jsonl (cross traffic)
└─ log/

Records of somebody else's, or changed by hand: what cannot be made of them is said in a sentence.
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from traceback import extract_tb
from typing import Any, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from testbed.errors import InputError, NarrowsError
from testbed.process import PACKAGE, is_root_outside
from testbed.records.stored import Files, Stored, stored
from testbed.user_files import PinnedFolder, data_of, named

MANIFEST, SUMMARY, LINKS, EVENTS = "manifest.json", "summary.json", "links.jsonl", "events"
TRAFFIC = "traffic.jsonl"
COMPARISON = "comparison.json"
MOST_LINE_BYTES, MOST_JSON_BYTES = 1 << 26, 1 << 28
"""The most bytes of a line of JSON and of a file that is one object; a run writes no more."""
OPEN_FILES = 256
"""The most files of a run that are kept open; others are opened for every write."""
IN_MEMORY_BYTES = 16 << 20
"""The most bytes of a run's events that are read into memory: so many take some 100 MB."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class RunDirectory:
    """A run directory that is being written. Methods may be called from several threads."""

    def __init__(self, path: Path, folder: PinnedFolder | None = None) -> None:
        """``folder``: what was made at ``path``; what has that path now if not given."""
        self.path = path
        self._folder = folder or PinnedFolder(path)
        self._descriptor = self._folder.descriptor
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        self._closed = False

    @classmethod
    def create(
        cls, out: Path, *, scenario_name: str, algorithm: str, seed: int, content_hash: str
    ) -> Self:
        """Make a new directory under ``out/runs``. Raises InputError when ``out`` is unusable."""
        stem = f"{_utc()}_{scenario_name}_{algorithm}_s{seed}_{content_hash[:8]}"
        path, folder = fresh(out / "runs", stem)
        for name in (EVENTS, "log"):
            folder.new(name)
        return cls(_by_no_link(path), folder)

    def identity(self, name: str = ".") -> tuple[int, int]:
        """Device and inode number of the directory, or of ``name`` in it. Raises OSError."""
        state = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        return state.st_dev, state.st_ino

    def folder(self) -> PinnedFolder:
        """The directory that was made, for files of others."""
        return self._folder

    @property
    def log(self) -> Path:
        """Folder for the logs of nodes and agent."""
        return self.path / "log"

    def event(self, role: str, rank: int, event: Mapping[str, Any]) -> None:
        """Append one event of a node to ``events/<role>-<rank>.jsonl``."""
        self.events(role, rank, [event])

    def events(self, role: str, rank: int, events: Iterable[Mapping[str, Any]]) -> None:
        """Append several at once."""
        self._append(f"{EVENTS}/{_safe(role)}-{int(rank)}.jsonl", list(events))

    def link(self, records: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        """Append one link record, or several, to ``links.jsonl``."""
        lines = [records] if isinstance(records, Mapping) else list(records)
        self._append(LINKS, lines)

    def traffic(self, record: Mapping[str, Any]) -> None:
        """Append what a node said of cross traffic to ``traffic.jsonl``."""
        self._append(TRAFFIC, [record])

    def write_json(self, name: str, value: object) -> Path:
        """Write ``name`` as JSON; readers see the old file or the new one, never a part."""
        return self.write_text(name, to_json(value, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> Path:
        """Write ``name``, replacing it in one move."""
        with named(self.path / name):
            self._folder.write(name, text.encode())
        return self.path / name

    def close(self) -> None:
        """Have everything on disk and close all files; later records are refused.

        Raises OSError where the disk did not take what it was given before, such as one that is
        somewhere else.
        """
        with self._lock, ExitStack() as closing:
            self._closed = True
            for handle in self._files.values():
                closing.callback(os.close, handle)
                closing.callback(os.fsync, handle)
            self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, name: str, records: list[Mapping[str, Any]]) -> None:
        data = b"".join(_line(record) for record in records)
        with self._lock:
            if self._closed:
                raise ValueError(f"the run directory {self.path.name} is closed")
            with named(self.path / name):
                self._add(name, data)

    def _add(self, name: str, data: bytes) -> None:
        if name in self._files:
            _write_all(self._files[name], data)
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(name, flags, 0o644, dir_fd=self._descriptor)
        if len(self._files) < OPEN_FILES - 1:  # the folder is one, too
            self._files[name] = file
        _write_all(file, data)
        if name not in self._files:
            os.close(file)


def comparison_directory(
    out: Path, scenario_name: str, content_hash: str
) -> tuple[Path, PinnedFolder]:
    """Make ``out/comparisons/<utc>_<scenario>_<hash8>/``; returns its path, and what was made."""
    return fresh(out / "comparisons", f"{_utc()}_{scenario_name}_{content_hash[:8]}")


def run_of(comparison: Path, run: Path) -> Path:
    """Where a comparison's run is: as written, or beside it when both were moved."""
    moved = comparison.resolve().parent.parent / "runs" / run.name
    return run if run.exists() or not moved.exists() else moved


def write_atomically(path: Path, text: str) -> Path:
    """Write beside ``path``, then move over it; the text is on disk before its name is."""
    return write_data_atomically(path, text.encode())


def write_data_atomically(path: Path, data: bytes) -> Path:
    """The same with bytes. A link that stands at ``path`` is replaced, not followed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with beside.open("xb") as file:  # a link that somebody has put there would be followed
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def read_jsonl(path: Path, *, whole: bool = False) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file; none if it does not exist.

    A last line without its newline was cut off by a kill and is left out; of a ``whole`` file it is
    a line like any other. Anything else that is not a JSON object raises InputError with file and
    line.
    """
    return (value for _, value in _lines(path, whole=whole))


def read_links(directory: Path) -> Sequence[dict[str, Any]]:
    """The records of a run's links; of a long run they stay in their file."""
    path = directory / LINKS
    if not path.exists() or path.stat().st_size <= 4 * IN_MEMORY_BYTES:
        return list(read_jsonl(path))
    lines, offset = Stored(Files([path])), 0
    for size, _ in _lines(path):
        lines.add(0, offset, size)
        offset += size
    return lines


def _lines(path: Path, *, whole: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every line's length in bytes and object."""
    if not path.exists():
        return
    _check_regular(path)
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_LINE_BYTES), b""), start=1):
            if len(line) == MOST_LINE_BYTES:
                raise InputError(
                    f"a line of more than {MOST_LINE_BYTES >> 20} MiB", where=f"{path}:{number}"
                )
            if not whole and not line.endswith(b"\n"):
                return
            value = _object(line)
            yield len(line), _parse(line, f"{path}:{number}") if value is None else value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises InputError when it is missing or something else."""
    return _parse(data_of(path, MOST_JSON_BYTES), str(path))


def read_events(
    directory: Path, kinds: Collection[str] | None = None
) -> dict[str, Sequence[dict[str, Any]]]:
    """Events of a run by kind (all, or only ``kinds``), in the order of the nodes' file names and
    then of their lines.

    Where there are more than ``IN_MEMORY_BYTES`` of them they stay in their files, and are read
    again whenever they are wanted.
    """
    files = _event_files(directory)
    if sum(path.stat().st_size for path in files) > IN_MEMORY_BYTES:
        return stored(files, _lines, kinds)
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in every_event(directory):
        kind = str(event.get("kind"))
        if kinds is None or kind in kinds:
            by_kind.setdefault(kind, []).append(event)
    return {**by_kind}


def _event_files(directory: Path) -> list[Path]:
    return sorted((directory / EVENTS).glob("*.jsonl"), key=_natural)


def every_event(directory: Path) -> Iterator[dict[str, Any]]:
    """All events of a run one after the other, in that order."""
    for path in _event_files(directory):
        yield from read_jsonl(path)


def _check_regular(path: Path) -> None:
    """Refuse what is no regular file: a pipe would be waited for, a device never ends."""
    if path.exists() and not path.is_file():
        raise InputError("this is no regular file", where=str(path))


def _object(raw: bytes) -> dict[str, Any] | None:
    """None where it is no JSON object."""
    try:
        value = orjson.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _with_odd_names(raw: bytes) -> Any:
    """JSON with names of files that are in another encoding than this system's: halves of pairs,
    which orjson refuses. None where it is no such JSON either."""
    if b"\\ud" not in raw:
        return None
    try:
        return json.loads(raw, parse_constant=int)
    except (ValueError, RecursionError):
        return None


def _parse(raw: bytes, where: str) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except ValueError as error:
        value = _with_odd_names(raw)
        if value is None:
            raise InputError(f"not JSON ({error})", where=where) from error
    if not isinstance(value, dict):
        raise InputError(f"a JSON object was expected, not {type(value).__name__}", where=where)
    return value


def _natural(path: Path) -> tuple[str, int]:
    role, _, rank = path.stem.rpartition("-")
    return role, int(rank) if rank.isdecimal() else -1


def to_json(value: object, indent: int | None = None) -> str:
    """``value`` as strict JSON: numbers that are not finite, which JSON lacks, become null."""
    separators = (",", ":") if indent is None else None
    options: dict[str, Any] = {"indent": indent, "separators": separators, "default": _plain}
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(
            json.loads(json.dumps(value, **options), parse_constant=lambda _: None), **options
        )


def _line(record: Mapping[str, Any]) -> bytes:
    return orjson.dumps(record, _plain, orjson.OPT_APPEND_NEWLINE)


def _plain(value: object) -> object:
    """Plain forms of numbers and paths; anything else is a programming error."""
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _write_all(handle: int, data: bytes) -> None:
    """One system call for whole lines; the loop is for a disk that takes less at a time.

    Of lines that it does not take nothing is left: the next ones would be appended to a part of
    one.
    """
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(handle, view) :]
    except OSError:
        written = len(data) - len(view)
        os.ftruncate(handle, os.fstat(handle).st_size - written)
        raise


def fresh(parent: Path, stem: str) -> tuple[Path, PinnedFolder]:
    """A directory that did not exist before: two runs in one second get different ones. Returns
    its path, and the directory itself, whatever has its path later."""
    name = _safe(stem)
    try:
        parent.parent.mkdir(parents=True, exist_ok=True)
        above = _followed(PinnedFolder(parent.parent.resolve()), parent)
        for suffix in ["", *(f"-{number}" for number in range(2, 1000))]:
            path = parent / f"{name}{suffix}"
            try:
                return path, above.new(path.name)
            except FileExistsError:
                continue
    except OSError as error:
        raise InputError(
            f"cannot make a directory in {parent} ({error.strerror})",
            where="--out",
            hint="Give a folder that you may write to",
        ) from error
    raise InputError(f"{parent} already has 999 directories called {name}", where="--out")


def _followed(above: PinnedFolder, path: Path) -> PinnedFolder:
    """The folder at ``path``, which is in ``above``, made where there is none. It may be a link;
    for root, a link of root's. Raises OSError and InputError."""
    with suppress(FileExistsError):
        os.mkdir(path.name, dir_fd=above.descriptor)
    try:
        return PinnedFolder(Path(path.name), above.descriptor)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
    if os.geteuid() != 0:
        return PinnedFolder(path.resolve())
    descriptor = os.open(
        path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above.descriptor
    )
    try:
        user = os.fstat(descriptor).st_uid
        if user != 0 and is_root_outside():
            raise InputError(
                f"user {user} has made this link, and root writes where it leads to",
                where=str(path),
                hint="Put a folder in its place, or a link of root's (`chown -h root`)",
            )
        return PinnedFolder((path.parent / os.readlink("", dir_fd=descriptor)).resolve())
    finally:
        os.close(descriptor)


def _by_no_link(path: Path) -> Path:
    """The same folder without symbolic links on the way, which a job could replace."""
    real = path.resolve()
    return path if real == path.absolute() else real


def _safe(text: str) -> str:
    return _UNSAFE.sub("-", text).strip(".") or "unnamed"


def _utc() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


_ROOT, _OURS = PACKAGE.parent, ("testbed", "analysis")
"""Where our code is: its packages, and the folder that has them."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LONGEST = 200
"""Characters of what an error says of itself."""


@contextmanager
def readable(paths: Iterable[Path]) -> Iterator[None]:
    """Raise InputError in place of any error that comes of using the records in ``paths``.

    The sentence names the line of code that could not use them, so that a fault of the code can be
    told from theirs. A full disk, or a library that is missing, stays what it is.
    """
    try:
        yield
    except (NarrowsError, ImportError):
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise
        where = ascii(error.filename or ", ".join(map(str, paths)))[1:-1][:_LONGEST]
        raise InputError(str(error.strerror), where=where) from error
    except Exception as error:
        raise InputError(
            f"the records cannot be used: {in_short(error)}",
            where=", ".join(map(str, paths)),
            hint=(
                "Give directories as 'testbed run' or 'testbed exec' wrote them, with nothing "
                "changed"
            ),
        ) from error


def equal_parts(start_s: float, stop_s: float, width_s: float, most: int) -> NDArray[np.float64]:
    """Edges of parts of a time, as ``numpy.arange`` has them. Raises InputError where they are more
    than ``most``: records of a few lines may speak of any time."""
    count = (stop_s - start_s) / width_s
    if not count <= most:
        raise InputError(
            f"records from {start_s:g} to {stop_s:g} s are longer than can be looked at: "
            f"at most {most * width_s:g} s"
        )
    return np.arange(start_s, stop_s, width_s)


def in_short(error: BaseException) -> str:
    """An error in a few words, with the last line of our own code that it went through."""
    said = ascii(str(error))[1:-1][:_LONGEST]
    return f"{type(error).__name__}: {said} ({_location(error)})"


def _location(error: BaseException) -> str:
    """The last line of our own code that it went through."""
    frames = extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_ROOT)]
    ours = [frame for frame in ours if Path(frame.filename).relative_to(_ROOT).parts[0] in _OURS]
    last = (ours or frames)[-1]
    return f"{Path(last.filename).parent.name}/{Path(last.filename).name}:{last.lineno}"
