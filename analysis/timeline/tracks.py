"""Spans side by side: those of one track do not overlap. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.timeline.span import Span


def tracks(spans: Iterable[Span]) -> list[list[Span]]:
    """As few tracks as possible, each in the order of time: a span goes to the first that is free.

    One row mostly needs one track. Rows of a server may need more: one worker has a bucket's reply and sends the
    next step's while the reply to another is still being sent.
    """
    found: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.from_s, span.to_s)):
        free = next((track for track in found if track[-1].to_s <= span.from_s), None)
        if free is None:
            found.append([span])
        else:
            free.append(span)
    return found


def rows(spans: Iterable[Span]) -> dict[int | None, list[Span]]:
    """A node's spans by bucket, ascending; what is of the whole step comes first."""
    found: dict[int | None, list[Span]] = {}
    for span in spans:
        found.setdefault(span.bucket, []).append(span)
    return dict(sorted(found.items(), key=lambda item: -1 if item[0] is None else item[0]))
