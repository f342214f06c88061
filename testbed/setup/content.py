"""Content hashes: what was made from the same content need not be made again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_IGNORED = ("__pycache__", ".pyc")
_DIGITS = 12


def of(*parts: str | bytes | Path) -> str:
    """Twelve hexadecimal digits for strings, bytes, and files or whole folders with their names."""
    digest = hashlib.sha256()
    for part in parts:
        for chunk in _chunks(part):
            digest.update(len(chunk).to_bytes(8, "little"))
            digest.update(chunk)
    return digest.hexdigest()[:_DIGITS]


def files(folder: Path) -> list[Path]:
    """The files below ``folder``, in a fixed order; compiled Python is left out."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(mark in str(path) for mark in _IGNORED))


def _chunks(part: str | bytes | Path) -> Iterable[bytes]:
    if isinstance(part, str):
        yield part.encode()
    elif isinstance(part, bytes):
        yield part
    elif part.is_dir():
        for path in files(part):
            yield str(path.relative_to(part)).encode()
            yield path.read_bytes()
    else:
        yield part.read_bytes()


class Stamp:
    """A small file that says from which content something was made."""

    def __init__(self, path: Path, content: str) -> None:
        self.path, self.content = path, content

    def fresh(self) -> bool:
        """Whether the thing was last made from this very content."""
        return self.path.is_file() and self.path.read_text() == self.content

    def write(self) -> None:
        """Say that it now is."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.content)
