"""Reading a trace file of any known format."""

from __future__ import annotations

from pathlib import Path

from testbed.errors import InputError
from testbed.traces.columns import meaning
from testbed.traces.formats import READERS, WITH_COLUMNS
from testbed.traces.source import Source, brief
from testbed.traces.table import is_number
from testbed.traces.trace import RateTrace
from testbed.user_files import text_of

MAX_BYTES = 64 * 2**20
HINT = "Name a trace file: they are text or JSON"
"""Larger files are refused."""

_BY_WIDTH = {2: "pairs", 6: "riiser"}
"""Formats of numbers between white space, by how many stand on a line."""


def read(path: Path, *, format: str | None = None, column: str | None = None) -> RateTrace:  # noqa: A002
    """The trace in ``path``; its format is told from the content unless ``format`` names it.

    ``column`` names the column that holds the rate, as ``NAME`` or ``NAME:UNIT``.
    Raises InputError with ``path:line`` for whatever is wrong with it.
    """
    text = text_of(path, MAX_BYTES, HINT)
    return parse(text, str(path), format=format, column=column)


def parse(
    text: str, path: str, *, format: str | None = None, column: str | None = None  # noqa: A002
) -> RateTrace:  # fmt: skip
    """The trace written in ``text``; ``path`` is what errors call it. See ``read``."""
    if format is not None and format not in READERS:
        raise InputError(f"unknown trace format {format!r}", hint=f"Known: {', '.join(READERS)}")
    source = Source(path, text.replace("\r\n", "\n").replace("\r", "\n"), column)
    form = format or _detected(source)
    if column is not None and form not in WITH_COLUMNS:
        raise source.error(
            None, f"a {form} trace has no columns to choose from: {brief(column)}", "Leave it out"
        )
    return READERS[form](source)


def detect(text: str, path: str) -> str:
    """The name of the format that ``text`` looks like. Raises InputError if it is none."""
    return _detected(Source(path, text.replace("\r\n", "\n").replace("\r", "\n")))


def _detected(source: Source) -> str:
    """By the first line with content."""
    line, first = next(source.numbered(), (None, ""))
    if line is None:
        raise source.error(None, "the trace is empty", "One line with a time and a rate is enough")
    if first[0] in "[{":
        return "sabre" if first[0] == "[" else "iperf3"
    words = first[:1000].split()
    if "," not in first and ";" not in first and all(map(is_number, words)):
        if len(words) in _BY_WIDTH:
            return _BY_WIDTH[len(words)]
        if first.isdigit():
            return "mahimahi"
    elif any(mark in first for mark in ",;\t") or meaning(first):
        return "csv"
    raise source.error(
        line,
        f"{brief(first)} begins no known trace format",
        "Known: CSV with a header such as time_s,rate_mbit_s; seconds and Mbit/s in two columns; "
        "Mahimahi; Riiser's six columns; Sabre JSON; iperf3 JSON",
    )
