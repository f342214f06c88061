"""What a job's processes print: every line with its node's name, and kept in ``log/<node>.log``.

A job must not fail, or never end, since nobody reads what it prints: what cannot be shown or kept is done without.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
import weakref
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import IO

from testbed.errors import printable

_AT_ONCE_BYTES, _LONGEST_BYTES = 1 << 16, 1 << 20
MOST_BYTES = 1 << 30
"""Of what a node prints, that are kept."""
_END = re.compile(rb"(\r*\n|\r+(?![\r\n]|\Z))")
"""A carriage return that came last may belong to a line's end that is still under way."""


def lines(pipe: IO[bytes]) -> Iterator[bytes]:
    """What comes, line by line: a carriage return ends one, too, and so does 1 MiB without any end.

    Progress bars write nothing but carriage returns for hours.
    """
    held: list[bytes] = []
    size, broken = 0, False
    while more := os.read(pipe.fileno(), _AT_ONCE_BYTES):
        if held and held[-1].endswith(b"\r"):
            size -= len(held[-1])
            more = held.pop() + more
        *whole, rest = _END.split(more)
        for text, end in zip(whole[::2], whole[1::2], strict=True):
            line = b"".join([*held, text])
            if line or (end.endswith(b"\n") and not broken):
                yield line + b"\n"
            held, size, broken = [], 0, False
        if rest:
            held.append(rest)
            size += len(rest)
        if size > _LONGEST_BYTES:
            yield b"".join(held) + b"\n"
            held, size, broken = [], 0, True
    if line := b"".join(held).rstrip(b"\r"):
        yield line + b"\n"


class Output:
    """``shown``: whether lines also go to standard output. ``several``: whether nodes have several processes.
    ``most_bytes``: of a node's lines that are kept."""

    def __init__(
        self, folder: Path, width: int, *, shown: bool, several: bool, most_bytes: int = MOST_BYTES
    ) -> None:
        self._width, self._shown, self._several = width, shown, several
        self._most_bytes = most_bytes
        self._terminal = sys.stdout.isatty()
        self._lock = threading.Lock()
        self._files: dict[str, FileIO] = {}
        self._full: set[str] = set()
        """Nodes of whose lines no more are kept."""
        self.last: dict[tuple[str, int], str] = {}
        """The last line with a letter or a digit in it, by node and local rank."""
        self.failure: str | None = None
        """Why some of it was not kept."""
        folder.mkdir(parents=True, exist_ok=True)
        # Whoever owns a folder above may put another in the place of this one later.
        self._place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._place)

    def line(self, node: str, local_rank: int, line: bytes) -> None:
        """A line with its end, from any thread."""
        own = f"[{local_rank}] ".encode() if self._several else b""
        whole = own + line
        text = line.decode(errors="replace").strip()
        with self._lock:
            if any(character.isalnum() for character in text):
                self.last[node, local_rank] = text
            self._keep(node, whole)
            if self._shown:
                self._show(f"{node:{self._width}} | {whole.decode(errors='replace')}")

    def close(self) -> None:
        """No more lines."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _opened(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o644, dir_fd=self._place)

    def _keep(self, node: str, line: bytes) -> None:
        if node in self._full:
            return
        try:
            if node not in self._files:
                self._files[node] = FileIO(f"{node}.log", "ab", opener=self._opened)
            file = self._files[node]
            begin = os.fstat(file.fileno()).st_size
            if begin + len(line) > self._most_bytes:
                self._full.add(node)
                self.failure = f"{node} printed more than {self._most_bytes} bytes: what came after them was not kept"
            elif file.write(line) != len(line):  # as much as there was room for
                file.truncate(begin)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.failure = f"not all output of {node} was kept: {error.strerror}"

    def _show(self, text: str) -> None:
        """A terminal gets colours, and nothing else that it would obey."""
        if self._terminal:
            text = printable(text, colours=True)
        encoding = sys.stdout.encoding or "utf-8"
        try:
            sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
            sys.stdout.flush()
        except OSError:  # nobody reads it any more, and nobody shall be told so at the very end
            self._shown = False
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
