"""What a growing file holds, passed on to a descriptor of this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

_CHUNK = 1 << 16


class Relay:
    """Passes on what is new whenever it is asked to."""

    def __init__(self, path: Path, target: int) -> None:
        path.touch()
        self._source, self._target = os.open(path, os.O_RDONLY), target

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.move()
        finally:
            os.close(self._source)

    def move(self) -> None:
        """Pass on everything that came since the last time. Raises OSError where nobody reads it."""
        while chunk := os.read(self._source, _CHUNK):
            while chunk:
                chunk = chunk[os.write(self._target, chunk) :]
