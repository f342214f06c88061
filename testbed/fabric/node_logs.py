"""Logs of nodes of ``netns``: what a node prints is kept in ``log/<node>.log``, up to a bound.

The nodes write into pipes and a thread each copies: whoever could write to the file itself could fill the disk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from testbed.job.output import MOST_BYTES
from testbed.user_files import log_in

_AT_ONCE_BYTES = 1 << 16
_LAST_WORDS_S = 1.0
"""From a process's end to that of its output, which children of it may hold open."""


class NodeLogs:
    """The logs in ``folder``. ``most_bytes``: of each that are kept; what comes after is read and let go."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._readers: dict[str, threading.Thread] = {}

    @contextmanager
    def open(self, node: str) -> Iterator[IO[bytes]]:
        """Where a process of ``node`` that is started in the ``with`` block shall write. Raises OSError and ExperimentError."""
        log = log_in(self._folder, f"{node}.log")
        reading, writing = os.pipe()
        reader = threading.Thread(target=self._copy, args=(reading, log), daemon=True)
        with os.fdopen(writing, "wb") as output:
            reader.start()
            self._readers[node] = reader
            yield output

    def settle(self, node: str) -> None:
        """Wait a moment for the last words of a node whose process has ended."""
        if (reader := self._readers.pop(node, None)) is not None:
            reader.join(_LAST_WORDS_S)

    def close(self) -> None:
        """The same for all nodes."""
        for node in list(self._readers):
            self.settle(node)

    def _copy(self, reading: int, log: IO[bytes]) -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe, log:
            room = max(0, self._most_bytes - os.fstat(log.fileno()).st_size)
            is_full = False
            while more := pipe.read(_AT_ONCE_BYTES):
                text = more[:room]
                room -= len(text)
                if len(text) < len(more) and not is_full:
                    is_full, text = True, text + self._end
                with suppress(OSError):  # a full disk ends no node
                    os.write(log.fileno(), text)

    @property
    def _end(self) -> bytes:
        return f"\ntestbed: more than {self._most_bytes} bytes: what came after them was not kept\n".encode()
