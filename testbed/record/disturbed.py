"""The times in which this machine could not be relied upon to emulate. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from testbed.record.events import Disturbed
from testbed.record.history import LinkHistory
from testbed.record.spans import Spans
from testbed.record.thresholds import Thresholds


def disturbed(history: LinkHistory, under_way: Spans, limits: Thresholds) -> list[Disturbed]:
    """All of them by time. A processor that nobody could have counts only while traffic was ``under_way``."""
    found = [
        *_of("stolen", history.host.stolen()),
        *_of("starved", history.host.starved(under_way, limits)),
        *_of("backlog", history.host.dropping()),
        *_of("late", Spans(chain(history.late, _late_changes(history, limits)))),
        *_read_back(history),
    ]
    return sorted(found, key=lambda span: (span.from_s, span.reason))


def _of(reason: str, spans: Spans) -> Iterator[Disturbed]:
    for from_s, to_s in spans:
        if to_s > 0:  # what was over before t0 disturbed nothing
            yield Disturbed(max(0.0, from_s), to_s, reason)


def _late_changes(history: LinkHistory, limits: Thresholds) -> Iterable[tuple[float, float]]:
    for made in history.changes.values():
        for change in made:
            if change.applied_s - change.due_s > limits.lateness_p99_ms / 1e3:
                yield change.due_s, change.applied_s


def _read_back(history: LinkHistory) -> Iterator[Disturbed]:
    for wrong in history.mismatches:
        place = f"{wrong['link']} {wrong['direction']}"
        yield Disturbed(float(wrong["from_s"]), float(wrong["to_s"]), "read_back", (place,))
