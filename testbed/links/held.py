"""What the kernel should hold against what it holds, look by look: the intervals in which they differ. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Mismatch(NamedTuple):
    """The kernel held ``held`` where ``asked`` was asked for, at some time between the two looks."""

    from_s: float
    to_s: float
    what: str
    asked: int | str
    held: int | str


class Held:
    """One value that the kernel holds for a link direction. ``what``: ``rate``, ``queue`` or ``line``."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._right_s = 0.0
        self._wrong: tuple[int | str, int | str] | None = None
        self._from_s = 0.0

    def see(self, now_s: float, asked: int | str, held: int | str) -> Mismatch | None:
        """Take in a look; returns the interval of disagreement that it ends, if any."""
        found = None if asked == held else (asked, held)
        ended = self.end(now_s) if found != self._wrong else None
        if found is None:
            self._right_s = now_s
        elif self._wrong is None:
            self._from_s = now_s if ended else self._right_s
        self._wrong = found
        return ended

    def end(self, now_s: float) -> Mismatch | None:
        """No more looks, or other values: returns the interval of disagreement under way, if any."""
        if self._wrong is None:
            return None
        wrong, self._wrong = self._wrong, None
        return Mismatch(self._from_s, now_s, self.what, *wrong)
