"""A run in the trace event format, which Perfetto and chrome://tracing open: what nodes did, what
links were asked for and carried, and traces that ``torch.profiler`` wrote (Kineto's), on one clock.

Format: "Trace Event Format" (JSON object form). Times are microseconds of model time after t0. A
process stands for a node, a thread for a row of it: complete events (``X``) of one thread do not
overlap, but for those of a profiler. Kineto's times are microseconds after its
``baseTimeNanoseconds`` of Unix time; a run's ``clock`` record says when t0 was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from analysis.load import Run
from analysis.series import EndSamples, ends, timed
from analysis.timeline import Point, Span, StepTimeline, rows, timeline, tracks, under_way
from testbed.errors import InputError
from testbed.records.job_steps import marked_steps
from testbed.records.run_directory import read_json

Json = dict[str, Any]
_BASE = "baseTimeNanoseconds"


class ProfilerTrace(NamedTuple):
    """A trace of ``torch.profiler``. ``node``: where it was taken."""

    node: str
    path: Path


def trace(run: Run, steps: Collection[int], profiles: Sequence[ProfilerTrace] = ()) -> Json:
    """Return the trace of ``steps`` as a JSON object: of a job, of all its steps. ``profiles`` are
    merged into it whole. Raises InputError for those that cannot be."""
    steps_timeline = timeline(run, steps)
    carried, every = under_way(run, steps), ends(run)
    nodes = [*steps_timeline.nodes, *(run.manifest["nodes"] if run.is_job else ())]
    names = list(dict.fromkeys([*nodes, *(end.link for end in every)]))
    events: list[Json] = []
    for pid, node in enumerate(names, start=1):
        events += _process(steps_timeline, node, pid)
        for direction in ("up", "down"):
            events += _counter(carried.get((node, direction), []), direction, pid)
        for end in every:
            if end.link == node:
                events += link_counters(end, pid, run, steps)
    if run.is_job:
        events += _job(run, names)
    for number, profile in enumerate(profiles):
        events += profiled(run, profile, 1000 * (number + 1))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": _about(run)}


def bounds_s(run: Run, steps: Collection[int]) -> tuple[float, float]:
    """Return from when to when ``steps`` took, in model time; without records of steps, always."""
    wanted = set(steps)
    own = [r for r in run.events.get("step", []) if r["step"] in wanted]
    if not own:
        return 0.0, float("inf")
    from_s = min(float(record["start_s"]) for record in own)
    return from_s / run.dilation, max(float(record["end_s"]) for record in own) / run.dilation


def link_counters(end: EndSamples, pid: int, run: Run, steps: Collection[int]) -> Iterator[Json]:
    """Yield counters of a link direction at the begin of each sample that overlaps ``steps``: its
    rates in Mbit/s of model time, requested and delivered, and its queue in bytes."""
    from_s, to_s = bounds_s(run, steps)
    bins = end.samples
    columns = (bins.start, bins.stop, bins.requested, bins.delivered, end.backlogs)
    for start, stop, requested, delivered, backlog in zip(*columns, strict=True):
        if stop < from_s or start > to_s:
            continue
        rates = {"requested": requested / 1e6, "delivered": delivered / 1e6}
        for name, values in (
            ("Mbit/s", {key: round(float(rate), 6) for key, rate in rates.items()}),
            ("queue", {"bytes": int(backlog)}),
        ):
            yield {
                "name": f"{end.direction} {name}", "ph": "C", "pid": pid,
                "ts": round(1e9 * float(start)) / 1000, "args": values,
            }  # fmt: skip


def _job(run: Run, names: Sequence[str]) -> Iterator[Json]:
    """Yield the steps that processes of a job marked, a thread for each; else its known steps."""
    marked = marked_steps(run.events.get("mark", []))
    spans: dict[tuple[str, str], list[Span]] = {}
    for step in marked:
        if step.start_s is not None:
            row = step.node, f"rank {step.rank}"
            spans.setdefault(row, []).append(_job_span(run, step.node, step))
    if not marked:
        spans["", "steps"] = [_job_span(run, "", step) for step in timed(run)]
    pids = {name: pid for pid, name in enumerate(names, start=1)} | {"": len(names) + 1}
    if not marked:
        yield _named("process_name", pids[""], 0, name="job")
    threads = {node: count(1) for node in pids}
    for (node, name), own in spans.items():
        tid = next(threads[node])
        yield _named("thread_name", pids[node], tid, name=name)
        yield from (_complete(span, pids[node], tid) for span in own)


def _job_span(run: Run, node: str, step: Any) -> Span:
    times = step.start_s / run.dilation, max(step.start_s, step.end_s) / run.dilation
    return Span(node, None, "step", step.number, *times, facts={**step.phases_s, **step.values})


def unix_t0_ns(run: Run) -> int:
    """Return t0 in nanoseconds of Unix time. Raises InputError where no record says so."""
    for record in run.links:
        if record["kind"] == "clock":
            return int(record["unix_ns"])
    raise InputError(
        f"the run in {str(run.path)!r} does not say when t0 was on the clock of a profiler",
        where="--kineto",
        hint="Runs in virtual time have no such clock, and older ones did not record it",
    )


def profiler_trace(run: Run, text: str) -> ProfilerTrace:
    """Return the file and node of ``[NODE=]FILE``; without a node, that of the rank that the file
    tells, or the only one. Raises InputError where the node is not known."""
    nodes: Mapping[str, Mapping[str, Any]] = run.manifest["nodes"]
    name, equals, file = text.partition("=")
    if equals and name in nodes:
        return ProfilerTrace(name, Path(file))
    path = Path(text)
    rank = (read_json(path).get("distributedInfo") or {}).get("rank")
    each = int(run.manifest["algorithm"].get("nproc") or 1)
    named = [(int(node["peer"]), name) for name, node in nodes.items() if node["role"] != "host"]
    ranked = [name for _, name in sorted(named)]  # as the ranks of a job's processes are given
    index = int(rank) // each if rank is not None else 0 if len(ranked) == 1 else -1
    if not 0 <= index < len(ranked):
        hint = f"Write NODE={text} with one of {', '.join(nodes)}"
        raise InputError("does not tell the node that it is from", where=text, hint=hint)
    return ProfilerTrace(ranked[index], path)


def profiled(run: Run, profile: ProfilerTrace, first_pid: int) -> Iterator[Json]:
    """Yield a profiler's events in the run's model time, processes numbered from ``first_pid`` on
    and named after the node; ids of flows get the number as a prefix. Raises InputError."""
    content, t0_ns = read_json(profile.path), unix_t0_ns(run)
    events, base_ns = content.get("traceEvents"), content.get(_BASE)
    if not isinstance(events, list) or not isinstance(base_ns, int):
        raise InputError(
            f"is no trace of torch.profiler: it lacks traceEvents or {_BASE}",
            where=str(profile.path),
            hint="Give a file that export_chrome_trace wrote, PyTorch 2.4 or newer",
        )
    pids: dict[Any, int] = {}
    threads: dict[tuple[int, Any], int] = {}
    for event in events:
        pid = pids.setdefault(event.get("pid"), first_pid + len(pids))
        own = {**event, "pid": pid}
        if "ts" in event:
            time_ns = base_ns - t0_ns + 1000 * float(event["ts"])
            own["ts"] = round(time_ns / run.dilation) / 1000
        if "dur" in event:
            own["dur"] = round(1000 * float(event["dur"]) / run.dilation) / 1000
        if "id" in event:
            own["id"] = f"{first_pid}:{event['id']}"
        if isinstance(event.get("tid"), str):
            key = pid, event["tid"]
            if key not in threads:
                threads[key] = len(threads) + 1
                yield _named("thread_name", pid, threads[key], name=event["tid"] or "profiler")
            own["tid"] = threads[key]
        if event.get("ph") == "M" and event.get("name") == "process_name":
            name = f"{profile.node}: {event['args'].get('name', '')} {event.get('pid')}"
            own["args"] = {"name": name}
        yield own


def _process(steps_timeline: StepTimeline, node: str, pid: int) -> Iterator[Json]:
    """A node's names, then its rows, each of as many threads as it needs."""
    yield _named("process_name", pid, 0, name=node)
    yield _named("process_sort_index", pid, 0, sort_index=pid)
    tid = 0
    for bucket, spans in rows(steps_timeline.of(node)).items():
        for number, track in enumerate(tracks(spans), start=1):
            tid += 1
            more = "" if number == 1 else f" ({number})"
            yield _named("thread_name", pid, tid, name=row_name(steps_timeline, bucket) + more)
            yield _named("thread_sort_index", pid, tid, sort_index=tid)
            yield from (_complete(span, pid, tid) for span in track)


def row_name(steps_timeline: StepTimeline, bucket: int | None) -> str:
    """Name a row, in words."""
    if bucket is None:
        return "computation" if steps_timeline.names else "step"
    return f"{bucket}: {steps_timeline.names.get(bucket, '?')}"


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
            "name": f"bytes under way {direction}",
            "ph": "C",
            "pid": pid,
            "ts": round(1e9 * time_s) / 1000,
            "args": {"bytes": total},
        }


def _about(run: Run) -> Mapping[str, Any]:
    return {
        "scenario": run.manifest["scenario"],
        "algorithm": run.algorithm,
        "seed": run.seed,
        "fabric": run.manifest["fabric"],
        "verdict": run.verdict,
        "dilation": run.dilation,
        "time": "model time after t0",
    }
