"""Reading a trace file of any known format."""

from __future__ import annotations

from pathlib import Path

from testbed.errors import InputError
from testbed.traces.formats import READERS
from testbed.traces.points import Source
from testbed.traces.trace import RateTrace

MAX_BYTES = 64 * 2**20
"""Larger files are refused."""


def read(path: Path, *, format: str | None = None) -> RateTrace:  # noqa: A002
    """The trace in ``path``; its format is told from the content unless ``format`` names it.

    Raises InputError with ``path:line`` for whatever is wrong with it.
    """
    if format is not None and format not in READERS:
        raise InputError(f"unknown trace format {format!r}", hint=f"Known: {', '.join(READERS)}")
    return parse(_text(path), str(path), format=format)


def parse(text: str, path: str, *, format: str | None = None) -> RateTrace:  # noqa: A002
    """The trace written in ``text``; ``path`` is what errors call it."""
    source = Source(path, text)
    return READERS[format or _detect(source)](source)


def _detect(source: Source) -> str:
    """The format that the first line with content looks like."""
    lines = source.lines()
    if not lines:
        raise source.error(None, "the trace is empty", "One line with a time and a rate is enough")
    line, first = lines[0]
    if first.startswith("["):
        return "sabre"
    if "," in first:
        return "csv"
    if len(first.split()) == 2:
        return "pairs"
    if first.isdigit():
        return "mahimahi"
    raise source.error(
        line,
        f"{first[:60]!r} begins no known trace format",
        "Known: CSV with a header such as time_s,rate_mbit_s; seconds and Mbit/s in two columns; "
        "Mahimahi; Sabre JSON",
    )


def _text(path: Path) -> str:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError("this is not a file", where=str(path), hint="Name a trace file")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"the trace is larger than {MAX_BYTES >> 20} MiB", where=str(path))
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the trace: {error.strerror}", where=str(path)) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InputError(
            "this is a binary file, not a trace", where=str(path), hint="Traces are text or JSON"
        )
    return text
