"""A control group whose processes have processors only while nobody else wants them.

Priorities of processes would not do: where sessions are scheduled as groups, a process is weighed within its own alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
"""Of the ``cpu`` controller, in the first version of control groups and in the second."""


class Spare:
    """What is started with ``prefix`` before it gets the processors' spare time, until ``end`` gives it its part."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        enter = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
        self.prefix = ["sh", "-c", enter, "spare", str(folder)]

    def end(self) -> None:
        """From now on it is one of all who want processors."""
        (self._folder / "cpu.idle").write_text("0")


@contextmanager
def spare() -> Iterator[Spare | None]:
    """A group of this process; None where this user or kernel has none to give."""
    group = next(filter(None, map(_made, ROOTS)), None)
    yield None if group is None else Spare(group)
    if group is not None:
        with suppress(OSError):  # somebody of it is left
            group.rmdir()


def _made(root: Path) -> Path | None:
    group = root / f"narrows-suite-{os.getpid()}"
    try:
        if (controllers := root / "cgroup.subtree_control").exists():
            controllers.write_text("+cpu")
        group.mkdir()
        (group / "cpu.idle").write_text("1")
    except OSError:
        with suppress(OSError):
            group.rmdir()
        return None
    return group
