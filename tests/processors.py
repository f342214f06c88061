"""Control groups for lanes that share the processors: one that goes before all others, one that lets all others go first.

Priorities of processes would not do: where sessions are scheduled as groups, a process is weighed within its own alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

_ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
"""Of the ``cpu`` controller, in the first version of control groups and in the second."""
_ENTER = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
WEIGHT = {"cpu.shares": "20480", "cpu.weight": "2000"}
"""Twenty times what others have: of each version's name for it there is one."""
IDLE = {"cpu.idle": "1"}
"""Its processes give way in the moment in which any other wakes up."""
_REAL_TIME, _REAL_TIME_US = "cpu.rt_runtime_us", (400_000, 50_000)
"""What real-time processes of a group may have in a second, where the kernel limits that by group: the first that is left of
950 ms for all."""


def favoured() -> AbstractContextManager[list[str]]:
    """A command's first words with which it goes before all others; none where there are no groups to give."""
    return _group("narrows-suite", WEIGHT)


def yielding() -> AbstractContextManager[list[str]]:
    """A command's first words with which it lets all others go first; none where there are no groups to give."""
    return _group("narrows-beside", IDLE)


@contextmanager
def _group(name: str, settings: Mapping[str, str]) -> Iterator[list[str]]:
    """A command's first words with which it is in a group with these settings; removes those of processes that were killed."""
    for left in (folder for root in _ROOTS for folder in root.glob(f"{name}-*")):
        if not Path("/proc", left.name.split("-")[-1]).exists():
            with suppress(OSError):  # somebody of it is left
                left.rmdir()
    folder = next((folder for root in _ROOTS if (folder := _create(root, name, settings))), None)
    if folder is None:
        yield []
        return
    yield ["sh", "-c", _ENTER, "group", str(folder)]
    with suppress(OSError):  # somebody of it is left
        folder.rmdir()


def _create(root: Path, name: str, settings: Mapping[str, str]) -> Path | None:
    folder = root / f"{name}-{os.getpid()}"
    try:
        if (controllers := root / "cgroup.subtree_control").exists():
            controllers.write_text("+cpu")
        folder.mkdir()
        given = {key: text for key, text in settings.items() if (folder / key).exists()}
        for key, text in given.items():
            (folder / key).write_text(text)
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
