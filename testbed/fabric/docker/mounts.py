"""Whether containers have those folders of the host's that they were to have.

The engine looks for them by their paths when a container starts. Whoever owns a folder on the way may have put another, or a
link, in its place, and the engine is root: so what is mounted is compared with what was there when the run began.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from testbed.errors import ExperimentError
from testbed.fabric.base import Identity
from testbed.fabric.docker.render import Document
from testbed.fabric.view import between

Mounts = Counter[Identity]
"""How often each folder or file is mounted."""
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def wanted(service: Document, pins: Mapping[Path, Identity]) -> Mounts:
    """What a service of the Compose file is to have: by ``pins``, else what is there now. Raises OSError."""
    sources = [Path(volume["source"]) for volume in service.get("volumes", ())]
    return Counter(pins[path] if path in pins else _identity(path) for path in sources)


def check(node: str, process: int, expected: Mounts) -> None:
    """Raises ExperimentError where a container lacks any of it. ``process``: any of the container's, on the host."""
    if expected - _mounted(process):
        raise ExperimentError(
            f"{node}'s container was given another folder than the run began with: somebody put one in its place"
        )


def pins_below(folder: Path, below: Path) -> dict[Path, Identity]:
    """The working directory, whose path is ``folder``, and the folders from there to ``below``, which it does not count.

    No link is followed, so all of them are in it. Raises OSError.
    """
    paths = (folder, *between(folder, below))
    return {path: _close(_walk(".", path.relative_to(folder).parts)) for path in paths}


def _mounted(process: int) -> Mounts:
    found: Mounts = Counter()
    root = f"/proc/{process}/root"
    for line in Path(f"/proc/{process}/mountinfo").read_bytes().splitlines():
        fields = os.fsdecode(line).split(" ")
        number, point = fields[0], _unescaped(fields[4])
        # Covered by another mount, or of a file system that nobody else may look into.
        with suppress(OSError):
            place = _walk(root, Path(point).parts[1:])
            mount = _mount_of(place)
            identity = _close(place)
            found[identity] += mount == number
    return found


def _walk(begin: str, names: Iterable[str]) -> int:
    """A descriptor of what is reached without any link."""
    place = os.open(begin, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        try:
            below = os.open(name, _LOOK, dir_fd=place)
        finally:
            os.close(place)
        place = below
    return place


def _mount_of(place: int) -> str:
    """The number of the mount that an open file is in."""
    (number,) = re.findall(
        r"^mnt_id:\s*(\d+)$", Path(f"/proc/self/fdinfo/{place}").read_text(), re.M
    )
    return str(number)


def _identity(path: Path) -> Identity:
    return _close(os.open(path, os.O_PATH | os.O_CLOEXEC))


def _close(place: int) -> Identity:
    try:
        found = os.fstat(place)
        return found.st_dev, found.st_ino
    finally:
        os.close(place)


def _unescaped(text: str) -> str:
    """A path as the kernel lists it: blanks and the like are octal there."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
