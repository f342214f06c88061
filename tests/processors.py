"""Parts of the processors, as control groups: for who has only what nobody else wants, and for who goes before others.

Priorities of processes would not do: where sessions are scheduled as groups, a process is weighed within its own alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
"""Of the ``cpu`` controller, in the first version of control groups and in the second."""
_NAME = "narrows-suite"
SPARE = {"cpu.idle": "1"}
FAVOURED = {"cpu.shares": "20480", "cpu.weight": "2000"}
"""Twenty times what others have: of each version's name for it there is one."""
_REAL_TIME, _REAL_TIME_US = "cpu.rt_runtime_us", (400_000, 50_000)
"""What real-time processes of a group may have in a second, where the kernel limits that by group: the first that is left of
950 ms for all."""


class Part:
    """What is started with ``prefix`` has this part of the processors."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        enter = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
        self.prefix = [] if folder is None else ["sh", "-c", enter, "part", str(folder)]

    def __bool__(self) -> bool:
        """Whether this user and kernel have such parts to give."""
        return self._folder is not None

    def set(self, name: str, value: str) -> None:
        """Change one of its files; nothing where there is no part."""
        if self._folder is not None:
            (self._folder / name).write_text(value)


@contextmanager
def part(settings: Mapping[str, str]) -> Iterator[Part]:
    """A part of its own for this process to give away. Removes those of processes that were killed."""
    for left in (folder for root in ROOTS for folder in root.glob(f"{_NAME}-*-*")):
        if not Path("/proc", left.name.split("-")[-2]).exists():
            with suppress(OSError):  # somebody of it is left
                left.rmdir()
    kind = "spare" if settings is SPARE else "favoured"
    folder = next(filter(None, (_made(root, kind, settings) for root in ROOTS)), None)
    yield Part(folder)
    if folder is not None:
        with suppress(OSError):  # somebody of it is left
            folder.rmdir()


def _made(root: Path, kind: str, settings: Mapping[str, str]) -> Path | None:
    folder = root / f"{_NAME}-{os.getpid()}-{kind}"
    try:
        if (controllers := root / "cgroup.subtree_control").exists():
            controllers.write_text("+cpu")
        folder.mkdir()
        given = {name: text for name, text in settings.items() if (folder / name).exists()}
        for name, text in given.items():
            (folder / name).write_text(text)
        if (limit := folder / _REAL_TIME).exists():
            _write_first(limit, _REAL_TIME_US)
    except OSError:
        given = {}
    if given:
        return folder
    with suppress(OSError):
        folder.rmdir()
    return None


def _write_first(file: Path, values: tuple[int, ...]) -> None:
    """The first that the kernel takes, or none."""
    for value in values:
        with suppress(OSError):
            file.write_text(str(value))
            return
