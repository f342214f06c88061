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
SPARE = {"cpu.idle": "1"}
FAVOURED = {"cpu.shares": "20480", "cpu.weight": "2000"}
"""Twenty times what others have: of each version's name for it there is one."""
_REAL_TIME = {"cpu.rt_runtime_us": "400000"}
"""What real-time processes of a group may have in a second, where the kernel limits that by group."""


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
    """A part of its own for this process to give away."""
    kind = "spare" if settings is SPARE else "favoured"
    folder = next(filter(None, (_made(root, kind, settings) for root in ROOTS)), None)
    yield Part(folder)
    if folder is not None:
        with suppress(OSError):  # somebody of it is left
            folder.rmdir()


def _made(root: Path, kind: str, settings: Mapping[str, str]) -> Path | None:
    folder = root / f"narrows-suite-{os.getpid()}-{kind}"
    try:
        if (controllers := root / "cgroup.subtree_control").exists():
            controllers.write_text("+cpu")
        folder.mkdir()
        given = {name: text for name, text in settings.items() if (folder / name).exists()}
        limits = {name: text for name, text in _REAL_TIME.items() if (folder / name).exists()}
        for name, text in {**given, **limits}.items():
            (folder / name).write_text(text)
    except OSError:
        given = {}
    if given:
        return folder
    with suppress(OSError):
        folder.rmdir()
    return None
