"""The rules of the trace event format that its readers rely on, as a check that says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

REQUIRED = {"X": {"name", "cat", "ts", "dur", "pid", "tid"}, "M": {"name", "pid", "args"}, "C": {"name", "ts", "pid", "args"}}  # fmt: skip
METADATA = {
    "process_name": "name", "process_sort_index": "sort_index",
    "thread_name": "name", "thread_sort_index": "sort_index",
}  # fmt: skip


def problems(trace: Any) -> list[str]:
    """None for a trace that is right; ``trace`` as it was read from JSON."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["no object with a list of traceEvents"]
    if trace.get("displayTimeUnit") not in ("ms", "ns"):
        return ["displayTimeUnit is neither ms nor ns"]
    events = trace["traceEvents"]
    found = [f"{event}: {problem}" for event in events for problem in _of_event(event)]
    return found or [*_unnamed(events), *_crossing(events)]


def _of_event(event: dict[str, Any]) -> Iterator[str]:
    phase = event.get("ph")
    if phase not in REQUIRED:
        yield f"unknown phase {phase!r}"
        return
    if missing := REQUIRED[phase] - event.keys():
        yield f"lacks {sorted(missing)}"
        return
    if not isinstance(event["pid"], int) or not isinstance(event.get("tid", 0), int):
        yield "pid and tid are whole numbers"
    if phase != "M" and not (isinstance(event["ts"], int | float) and event["ts"] >= 0):
        yield "ts is a time of 0 or later"
    if phase == "X" and not event["dur"] >= 0:
        yield "lasts less than no time"
    if phase == "M" and METADATA.get(event["name"]) not in event["args"]:
        yield "metadata without its value"
    if phase == "C" and not all(isinstance(value, int | float) for value in event["args"].values()):
        yield "a counter counts numbers"


def _unnamed(events: list[dict[str, Any]]) -> Iterator[str]:
    named = {(e["pid"], e.get("tid")) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    for event in events:
        if event["ph"] == "X" and (event["pid"], event["tid"]) not in named:
            yield f"thread {event['tid']} of process {event['pid']} has no name"
        if event["pid"] not in processes:
            yield f"process {event['pid']} has no name"


def _crossing(events: list[dict[str, Any]]) -> Iterator[str]:
    """Of one thread, an event ends before the next begins, or holds it wholly. In whole nanoseconds, as readers do."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            begin = round(1000 * event["ts"])
            end = begin + round(1000 * event["dur"])
            threads.setdefault((event["pid"], event["tid"]), []).append((begin, -end))
    for thread, spans in threads.items():
        open_until: list[int] = []
        for begin, end in sorted(spans):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            if open_until and -end > open_until[-1]:
                yield f"thread {thread}: an event from {begin} ns crosses another's end"
            open_until.append(-end)
