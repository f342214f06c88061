"""A control group that goes before all others where processors are short.

Priorities of processes would not do: where sessions are scheduled as groups, a process is weighed within its own alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
"""Of the ``cpu`` controller, in the first version of control groups and in the second."""
_NAME = "narrows-suite"
_ENTER = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
WEIGHT = {"cpu.shares": "20480", "cpu.weight": "2000"}
"""Twenty times what others have: of each version's name for it there is one."""
_REAL_TIME, _REAL_TIME_US = "cpu.rt_runtime_us", (400_000, 50_000)
"""What real-time processes of a group may have in a second, where the kernel limits that by group: the first that is left of
950 ms for all."""


@contextmanager
def favoured() -> Iterator[list[str]]:
    """A command's first words with which it is in a group of its own; none where there are no groups to give.

    Removes those of processes that were killed.
    """
    for left in (folder for root in _ROOTS for folder in root.glob(f"{_NAME}-*")):
        if not Path("/proc", left.name.split("-")[-1]).exists():
            with suppress(OSError):  # somebody of it is left
                left.rmdir()
    folder = next(filter(None, map(_made, _ROOTS)), None)
    if folder is None:
        yield []
        return
    yield ["sh", "-c", _ENTER, "group", str(folder)]
    with suppress(OSError):  # somebody of it is left
        folder.rmdir()


def _made(root: Path) -> Path | None:
    folder = root / f"{_NAME}-{os.getpid()}"
    try:
        if (controllers := root / "cgroup.subtree_control").exists():
            controllers.write_text("+cpu")
        folder.mkdir()
        given = {name: text for name, text in WEIGHT.items() if (folder / name).exists()}
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
