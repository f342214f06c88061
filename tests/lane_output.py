"""What of a lane's output is for the terminal: all but how long each test took, which its log has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_DURATION = re.compile(rb"\d+\.\d+s (call|setup|teardown) |\(\d+ durations < .* hidden\.|\r?\n?$")
"""A line of pytest's list of durations."""
_HEADING = b"slowest durations"


def without_durations(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The output of ``pytest --durations=0`` without that list, as it comes: half a line of dots is not waited for."""
    line, hidden = b"", False
    for piece in (piece for chunk in chunks for piece in chunk.splitlines(keepends=True)):
        begun, line = line, line + piece
        whole = line.endswith(b"\n")
        if hidden or line.startswith(b"="):
            if not whole:
                continue
            hidden = _HEADING in line or (hidden and _DURATION.match(line) is not None)
            if not hidden:
                yield line
        else:
            yield line[len(begun) :]
        if whole:
            line = b""
    if line and (hidden or line.startswith(b"=")):
        yield line
