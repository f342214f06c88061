"""Whether links and events name what exists, and every link direction can be shaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from testbed.errors import InputError
from testbed.scenario.events import Event, OutageEvent, RampEvent, TraceEvent
from testbed.scenario.expand import DEFAULT, end_settings, node_names, queue_bytes
from testbed.scenario.model import LinkEnd, Scenario
from testbed.scenario.problems import Problem
from testbed.scenario.shape import End
from testbed.scenario.timeline import ALL
from testbed.scenario.yaml_text import Place
from testbed.traces import RateTrace
from testbed.units import Duration

LEAST_EVERY = Duration(1e-3)
"""Faster changes are refused: applying one to a kernel takes longer."""
MAX_RAMP_STEPS = 100_000


def check_links(scenario: Scenario) -> Iterator[Problem]:
    """Keys under ``links``, and the settings that every link direction ends up with."""
    known = _nodes(scenario)
    for key, link in scenario.links.items():
        if key != DEFAULT and key not in known:
            yield Problem(("links", key), _unknown(key, scenario, f"`{DEFAULT}`"))
        if link.down.at is not None:
            yield Problem(
                ("links", key, "down", "at"), "only `up` has a place; leave `at` out here"
            )
    told: set[str] = set()
    for end, settings in end_settings(scenario).items():
        for message in _end(end, settings):
            group = message.replace(str(end), known[end.link])
            if group not in told:  # once a group, not once for each of its thousand nodes
                told.add(group)
                yield Problem(_place(scenario, end, known[end.link]), message)


def check_events(scenario: Scenario, traces: Mapping[str, RateTrace]) -> Iterator[Problem]:
    """Names, order and times of events."""
    known, before = _nodes(scenario), Duration(0.0)
    for i, event in enumerate(scenario.events):
        for j, name in enumerate(event.links):
            if name != ALL and name not in known:
                message = _unknown(name, scenario, f"`{ALL}`")
                yield Problem(("events", i, "links", j), message)
        if event.at < before:
            yield Problem(
                ("events", i, "at"),
                f"time goes backwards: {event.at} after {before}; list events by time",
            )
        before = max(before, event.at)
        yield from (Problem(("events", i, key), text) for key, text in _event(event, traces))


def _event(event: Event, traces: Mapping[str, RateTrace]) -> Iterator[tuple[str, str]]:
    if isinstance(event, OutageEvent) and not event.for_:
        yield "for", "an outage lasts longer than 0"
    if isinstance(event, RampEvent):
        if not event.over:
            yield "over", "a ramp takes longer than 0; for a jump use `kind: step`"
        if event.every < LEAST_EVERY:
            yield "every", f"links cannot be changed that often: write {LEAST_EVERY} or more"
        elif event.over / event.every > MAX_RAMP_STEPS:
            yield "every", f"more than {MAX_RAMP_STEPS} changes: write a longer time"
    trace = traces.get(event.file) if isinstance(event, TraceEvent) else None
    if isinstance(event, TraceEvent) and trace and event.offset >= trace.duration_s:
        length = Duration(trace.duration_s)
        yield "offset", f"{event.offset} is past the end of the trace, which lasts {length}"


def _end(end: End, settings: LinkEnd) -> Iterator[str]:
    try:
        queue_bytes(end, settings)
    except InputError as error:
        yield str(error)
    for field in ("jitter", "reorder"):
        if getattr(settings, field) and not settings.delay:
            yield f"{end}: {field} needs a delay to act on"


def _place(scenario: Scenario, end: End, group: str) -> Place:
    """The innermost entry under ``links`` that speaks of ``end``."""
    for key in (end.link, group, DEFAULT):
        if key in scenario.links:
            return ("links", key, end.direction)
    return ("links",)


def _nodes(scenario: Scenario) -> dict[str, str]:
    """Names that links and events may use, nodes and groups, each with its group."""
    nodes = {node: group for group in scenario.nodes for node in node_names(scenario, group)}
    return {**{group: group for group in scenario.nodes}, **nodes}


def _unknown(name: str, scenario: Scenario, special: str) -> str:
    known = _nodes(scenario)
    near = get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    groups = ", ".join(
        group if settings.count is None else f"{group} ({group}-0 to {group}-{settings.count - 1})"
        for group, settings in scenario.nodes.items()
    )
    return f"no node or group is called {name!r}: {meant}Known: {special}, {groups}"
