"""A trace file's text, line by line, and the errors that name a line of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from reprlib import Repr

from testbed.errors import InputError

LARGEST_NUMBER = 1e100
"""Larger ones are refused at once, so that sums and products stay finite."""
_BLOCK_CHARACTERS = 2**20
_CARRIED = ("rate", "bandwidth", "bytes", "amount")
"""Words in what a number means that tell it from a time: 0 of it is an outage."""
_brief = Repr()
_brief.maxstring = _brief.maxlong = _brief.maxother = 60


@dataclass(frozen=True, slots=True)
class Source:
    r"""A trace that has been read: ``path`` as it was given, its text (lines end with ``\n``).

    ``column`` is the one that holds the rate, where a format has several; None to find it.
    """

    path: str
    text: str
    column: str | None = None

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Number and content of every line that is neither blank nor a comment."""
        for number, line in enumerate(_lines(self.text), start=1):
            if content := _content(line):
                yield number, content

    def blocks(self, skip: int = 0) -> Iterator[list[str]]:
        """The contents of the same lines without the first ``skip``, some ten thousand at a time."""
        start, text = 0, self.text
        while start < len(text):
            stop = text.find("\n", start + _BLOCK_CHARACTERS)
            stop = len(text) if stop < 0 else stop
            part = text[start:stop]
            # Stripping is quicker, but a tab at an end may separate an empty cell.
            lines = map(_content if "\t" in part else str.strip, part.split("\n"))
            block = [line for line in lines if line and line[0] != "#"]
            start = stop + 1
            yield block[skip:]
            skip = max(0, skip - len(block))

    def line_of(self, index: int) -> int:
        """The number of the line that is the ``index``-th of those that are neither blank nor comments."""
        return next(line for i, (line, _) in enumerate(self.numbered()) if i == index)

    def error(self, line: int | None, message: str, hint: str | None = None) -> InputError:
        """An error at ``line``, ready to be raised."""
        return InputError(message, where=f"{self.path}:{line}" if line else self.path, hint=hint)


def number(source: Source, line: int | None, given: object, what: str) -> float:
    """``given`` as a finite number that is not negative. Raises InputError."""
    try:
        value = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        hint = f"Here should be {what}"
        raise source.error(line, f"{brief(given)} is not a number", hint) from None
    if not math.isfinite(value) or isinstance(given, bool):
        raise source.error(line, f"{brief(given)} is not a finite number", f"Here should be {what}")
    if not 0 <= value <= LARGEST_NUMBER:
        wrong = "negative" if value < 0 else "too large"
        least = "Zero is the least" + (" (an outage)" if any(w in what for w in _CARRIED) else "")
        hint = least if value < 0 else f"{LARGEST_NUMBER:g} is the most"
        raise source.error(line, f"{what} is {wrong}: {value:g}", hint)
    return value


def brief(given: object) -> str:
    """How a message quotes what was given, whatever its length or depth."""
    return _brief.repr(given)


def _content(line: str) -> str:
    """The line without spaces around it; empty if it is blank or a comment."""
    stripped = line.strip()
    return line.strip(" \f\v") if stripped and stripped[0] != "#" else ""


def _lines(text: str) -> Iterator[str]:
    start = 0
    while (stop := text.find("\n", start)) >= 0:
        yield text[start:stop]
        start = stop + 1
    yield text[start:]
