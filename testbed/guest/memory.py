"""How much memory a guest gets, and in which folder it lies."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from testbed.errors import MachineError

GIB = 2**30
ENOUGH = 4 * GIB
"""For a server and a few workers that import torch, and what they write."""
LEAST = GIB // 2
_SHARE = 0.75
_SHARED_MEMORY = Path("/dev/shm")
_INFO = Path("/proc/meminfo")


def available(info: Path = _INFO) -> int:
    """Bytes that programs can still have on this host."""
    for line in info.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def size(asked: int | None) -> int:
    """Bytes for the guest: what was asked for, else up to 4 GiB of what is free. Raises MachineError."""
    spare = int(available() * _SHARE)
    if asked is None and spare >= LEAST:
        return min(ENOUGH, spare)
    if asked is not None and LEAST <= asked <= available():
        return asked
    wanted = f"{(asked or LEAST) / GIB:.1f} GiB"
    raise MachineError(
        f"a guest of {wanted} does not fit: {available() / GIB:.1f} GiB of memory are free",
        fix=f"Free some, or ask for less, but no less than {LEAST / GIB:g} GiB",
    )


def folder(needed: int) -> Path:
    """Where there is room for it, in memory if there can be. The guest takes only what it uses."""
    places = [_SHARED_MEMORY, Path(tempfile.gettempdir())]
    for place in places:
        if _usable(place, needed):
            return place
    raise MachineError(
        f"neither {places[0]} nor {places[1]} has room for the guest's memory, {needed / GIB:.1f} GiB",
        fix="Make room, or name a folder in TMPDIR on a file system that may hold programs",
    )


def _usable(place: Path, needed: int) -> bool:
    """The guest's memory holds its programs too, so ``noexec`` will not do."""
    if not os.access(place, os.W_OK | os.X_OK):
        return False
    state = os.statvfs(place)
    return state.f_bavail * state.f_frsize >= needed and not state.f_flag & os.ST_NOEXEC
