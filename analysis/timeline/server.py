"""A server's spans: gathering, adding up and replying, of each bucket or of the whole step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.timeline.span import Span, chain

Record = Mapping[str, Any]
_DONE = ("gather", "aggregate", "queue", "reply")


def served_spans(record: Record, dilation: float) -> Iterator[Span]:
    """Of a ``served`` record."""
    yield from _spans(record, int(record["bucket"]), float(record["complete_s"]), dilation)


def round_spans(record: Record, dilation: float) -> Iterator[Span]:
    """Of a ``round`` record, whose messages are all of the step's."""
    complete_s = max((float(m["last_s"]) for m in record["messages"]), default=None)
    if complete_s is not None:
        yield from _spans(record, None, complete_s, dilation)


def _spans(
    record: Record, bucket: int | None, complete_s: float, dilation: float
) -> Iterator[Span]:
    first_s = min((float(m["first_s"]) for m in record["messages"]), default=complete_s)
    times = [
        first_s, complete_s, complete_s + float(record["aggregate_s"]),
        float(record["send_start_s"]), float(record["send_end_s"]),
    ]  # fmt: skip
    facts = {
        "gather": {"messages": len(record["messages"]), "bytes": sum(m["bytes"] for m in record["messages"])},
        "aggregate": {"union_count": record["union_count"]},
        "reply": {"bytes": record["bytes_down"]},
    }  # fmt: skip
    for activity, from_s, to_s in chain([time_s / dilation for time_s in times], _DONE):
        yield Span(
            str(record["node"]), bucket, activity, int(record["step"]), from_s, to_s,
            facts=facts.get(activity, {}),
        )  # fmt: skip
