"""Whether events name what exists, come in order, and ask for times that links can follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from testbed.scenario.events import (
    AbsentEvent,
    Event,
    FlapEvent,
    NodeEvent,
    OutageEvent,
    PartitionEvent,
    PauseEvent,
    RampEvent,
    StepEvent,
    TraceEvent,
)
from testbed.scenario.link import CHANGEABLE
from testbed.scenario.model import Scenario
from testbed.scenario.names import Names
from testbed.scenario.problems import Problem
from testbed.scenario.reach import ALL
from testbed.traces import RateTrace
from testbed.units import Duration

LEAST_EVERY = Duration(1e-3)
"""Faster changes are refused: applying one to a kernel takes longer."""
MAX_REPETITIONS = 100_000
"""Steps of a ramp, and outages of a flap."""

_LASTING = OutageEvent | FlapEvent | PartitionEvent | PauseEvent | AbsentEvent
Complaint = tuple[str, str]


def check_events(
    scenario: Scenario, traces: Mapping[str, RateTrace], names: Names
) -> Iterator[Problem]:
    """Names, order and times of events."""
    before = Duration(0.0)
    for i, event in enumerate(scenario.events):
        yield from _names(i, event, names)
        if event.at < before:
            yield Problem(
                ("events", i, "at"),
                f"time goes backwards: {event.at} after {before}; list events by time",
            )
        before = max(before, event.at)
        yield from (Problem(("events", i, key), text) for key, text in _event(event, traces))


def _names(i: int, event: Event, names: Names) -> Iterator[Problem]:
    if isinstance(event, NodeEvent):
        for j, name in enumerate(event.nodes):
            if name not in names.groups:
                yield Problem(("events", i, "nodes", j), names.unknown(name))
        return
    for j, name in enumerate(event.links):
        if name != ALL and name not in names.groups and name not in names.racks:
            yield Problem(("events", i, "links", j), names.unknown(name, ALL, racks=True))


def _event(event: Event, traces: Mapping[str, RateTrace]) -> Iterator[Complaint]:
    if isinstance(event, _LASTING) and not event.for_:
        noun = {"flap": "outage", "absent": "absence"}.get(event.kind, event.kind)
        yield "for", f"{'an' if noun[0] in 'ao' else 'a'} {noun} lasts longer than 0"
    if isinstance(event, StepEvent) and all(getattr(event, key) is None for key in CHANGEABLE):
        yield "kind", f"this step changes nothing: give one of {', '.join(CHANGEABLE)}"
    if isinstance(event, RampEvent):
        yield from _ramp(event)
    if isinstance(event, FlapEvent):
        yield from _flap(event)
    if isinstance(event, TraceEvent):
        yield from _trace(event, traces.get(event.key))


def _ramp(event: RampEvent) -> Iterator[Complaint]:
    if not event.over:
        yield "over", "a ramp takes longer than 0; for a jump use `kind: step`"
    if event.every < LEAST_EVERY:
        yield "every", f"links cannot be changed that often: write {LEAST_EVERY} or more"
    elif event.over / event.every > MAX_REPETITIONS:
        yield "every", f"more than {MAX_REPETITIONS} changes: write a longer time"


def _flap(event: FlapEvent) -> Iterator[Complaint]:
    if event.for_ and min(event.for_, event.every - event.for_) < LEAST_EVERY * 0.999:
        yield (
            "every",
            f"outages of {event.for_} every {event.every} leave no time between them: they and "
            f"what is between them last {LEAST_EVERY} at least",
        )
    if event.times > MAX_REPETITIONS:
        yield "times", f"more than {MAX_REPETITIONS} outages: write fewer"


def _trace(event: TraceEvent, trace: RateTrace | None) -> Iterator[Complaint]:
    if event.at_end == "loop" and event.repeat != 1:
        yield "repeat", "a loop never ends: use `at_end: hold` or `stop`, or leave `repeat` out"
    if event.at_end != "loop" and event.offset_per_seed:
        yield "offset_per_seed", "only a loop can begin anywhere: use `at_end: loop`"
    if trace is None:
        return
    if event.offset >= trace.duration_s:
        length = Duration(trace.duration_s)
        yield "offset", f"{event.offset} is past the end of the trace, which lasts {length}"
    length = Duration(round(trace.duration_s * event.stretch, 9))
    if length / len(trace.times_s) < LEAST_EVERY * 0.999:
        least = LEAST_EVERY * len(trace.times_s) / trace.duration_s
        yield (
            "file" if event.stretch == 1 else "stretch",
            f"{len(trace.times_s)} points in {length}: links cannot be changed that often; "
            f"write a stretch of {least:.3g} or more",
        )
    if max(trace.rates_bits) * event.scale > 2**53:
        yield "scale", f"{event.scale:g} times the trace's highest rate is too large: write less"
