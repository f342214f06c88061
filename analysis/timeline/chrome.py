"""A timeline in the trace event format, which Perfetto and chrome://tracing open.

Format: "Trace Event Format" (JSON object form). Times are microseconds. A process stands for a node, a thread for a row of
it: complete events (``X``) of one thread do not overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from analysis.load import Run
from analysis.timeline.of_run import Timeline, timeline
from analysis.timeline.span import Span
from analysis.timeline.tracks import rows, tracks
from analysis.timeline.under_way import Point, under_way

Json = dict[str, Any]


def trace(run: Run, steps: Collection[int]) -> Json:
    """The trace of ``steps`` as a JSON object, in model time after t0."""
    found = timeline(run, steps)
    carried = under_way(run, steps)
    events: list[Json] = []
    for pid, node in enumerate(found.nodes, start=1):
        events += _process(found, node, pid)
        for direction in ("up", "down"):
            events += _counter(carried.get((node, direction), []), direction, pid)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": _about(run)}


def _process(found: Timeline, node: str, pid: int) -> Iterator[Json]:
    """A node's names, then its rows, each of as many threads as it needs."""
    yield _named("process_name", pid, 0, name=node)
    yield _named("process_sort_index", pid, 0, sort_index=pid)
    tid = 0
    for bucket, spans in rows(found.of(node)).items():
        for number, track in enumerate(tracks(spans), start=1):
            tid += 1
            more = "" if number == 1 else f" ({number})"
            yield _named("thread_name", pid, tid, name=row_name(found, bucket) + more)
            yield _named("thread_sort_index", pid, tid, sort_index=tid)
            yield from (_complete(span, pid, tid) for span in track)


def row_name(found: Timeline, bucket: int | None) -> str:
    """What a row is of, in words."""
    if bucket is None:
        return "computation" if found.names else "step"
    return f"{bucket}: {found.names.get(bucket, '?')}"


def _named(what: str, pid: int, tid: int, **value: str | int) -> Json:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": value}


def _complete(span: Span, pid: int, tid: int) -> Json:
    """Both ends are rounded to nanoseconds, so that what followed without a gap still does."""
    from_ns, to_ns = round(1e9 * span.from_s), round(1e9 * span.to_s)
    return {
        "name": span.name, "cat": span.activity, "ph": "X", "pid": pid, "tid": tid,
        "ts": from_ns / 1000, "dur": (to_ns - from_ns) / 1000,
        "args": {"step": span.step, **span.facts},
    }  # fmt: skip


def _counter(points: Collection[Point], direction: str, pid: int) -> Iterator[Json]:
    for time_s, total in points:
        yield {
            "name": f"bytes under way {direction}", "ph": "C", "pid": pid,
            "ts": round(1e9 * time_s) / 1000, "args": {"bytes": total},
        }  # fmt: skip


def _about(run: Run) -> Mapping[str, Any]:
    return {
        "scenario": run.manifest["scenario"], "algorithm": run.algorithm, "seed": run.seed,
        "fabric": run.manifest["fabric"], "verdict": run.verdict, "dilation": run.dilation,
        "time": "model time after t0",
    }  # fmt: skip
