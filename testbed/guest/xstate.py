"""A small library that goes before User-mode Linux on processors that are newer than it (``xstate.c``)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from testbed.setup import content
from testbed.setup.command import run
from testbed.setup.paths import cache

_SOURCE = Path(__file__).with_name("xstate.c")
_CPU = Path("/proc/cpuinfo")
_LARGER = {"amx_tile", "apx"}
"""Features whose registers User-mode Linux has no room for."""


def needed(cpuinfo: Path = _CPU) -> bool:
    """Whether this processor has registers that User-mode Linux does not know."""
    for line in cpuinfo.read_text().splitlines():
        if line.startswith("flags"):
            return not _LARGER.isdisjoint(line.split())
    return False


def library() -> Path:
    """The library, compiled where it has not been. Raises CommandFailed when it cannot be."""
    path = cache("guest") / f"xstate-{content.of(_SOURCE)}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            draft = Path(folder) / path.name
            run(["cc", "-O2", "-shared", "-fPIC", "-o", str(draft), str(_SOURCE), "-ldl"])
            draft.replace(path)
    return path
