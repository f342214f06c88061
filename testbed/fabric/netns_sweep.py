"""Undoing a journal, newest entry first."""

from __future__ import annotations

from testbed.errors import MachineError
from testbed.fabric.journal import KEPT, Entry, Journal, cleaners, shown

_LONGEST = 4000
"""Characters of a message that lists what is left."""


def sweep(journal: Journal) -> list[str]:
    """Remove whatever a journal lists and is still there, then the journal; returns what, in words.

    Raises MachineError when something could not be removed; the journal is kept then.
    """
    removed: list[str] = []
    failures: list[str] = []
    for entry in reversed(journal.entries):
        if entry["kind"] == KEPT:
            continue
        try:
            removed += _remove(entry)
        except (OSError, MachineError) as error:
            failures.append(f"{_name(entry)}: {error}")
    if failures:
        raise MachineError(
            f"of run {journal.run!r} not removed: {shown('; '.join(failures))[:_LONGEST]}",
            fix="Run `testbed clean` with the privileges of whoever ran it.",
        )
    journal.close()
    return removed


def _remove(entry: Entry) -> list[str]:
    kind = entry["kind"]
    if kind not in cleaners:
        raise MachineError(f"nobody knows how to remove a {kind}")
    return cleaners[kind](entry)


def _name(entry: Entry) -> str:
    return " ".join(str(value) for value in entry.values())
