"""Whether every link direction ends up with settings that can be shaped, at t0 and after each step."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.errors import InputError
from testbed.scenario.check_ends import complaints
from testbed.scenario.events import StepEvent
from testbed.scenario.expand import end_settings
from testbed.scenario.link import LinkEnd
from testbed.scenario.model import Scenario
from testbed.scenario.names import Names
from testbed.scenario.problems import Problem
from testbed.scenario.reach import Alike, alike
from testbed.scenario.settings import DEFAULT, held_bytes, overlaid, queue_bytes
from testbed.scenario.shape import End
from testbed.scenario.yaml_text import Place
from testbed.units import Rate


def check_links(scenario: Scenario, names: Names) -> Iterator[Problem]:
    """Keys under ``links`` and ``racks``, and the settings that every link direction ends up with."""
    for key, link in scenario.links.items():
        if key in names.racks:
            yield Problem(("links", key), f"{key!r} is a rack: write this under `racks.{key}`")
        elif key != DEFAULT and key not in names.groups:
            yield Problem(("links", key), names.unknown(key, DEFAULT))
        if link.down.at is not None:
            yield Problem(
                ("links", key, "down", "at"), "only `up` has a place; leave `at` out here"
            )
    told: set[str] = set()
    for end, settings in end_settings(scenario).items():
        group = names.groups.get(end.link, end.link)
        for field, message in _end(end, settings, scenario):
            told_as = message.replace(str(end), group)
            if told_as not in told:  # once a group, not for each of its nodes
                told.add(told_as)
                yield Problem(_place(scenario, end, group, field), message)


def check_steps(scenario: Scenario) -> Iterator[Problem]:
    """What every step leaves of the settings of the directions it concerns."""
    told: set[tuple[int, str | None, str]] = set()
    for group in alike(scenario):
        for i, field, message in _steps(scenario, group):
            if (i, field, message) not in told:
                told.add((i, field, message))
                place: Place = ("events", i) if field is None else ("events", i, field)
                yield Problem(place, f"then, of {group.ends[0]}: {message}")


def _steps(scenario: Scenario, group: Alike) -> Iterator[tuple[int, str | None, str]]:
    settings = group.settings
    known = set(complaints(settings, scenario.dilation))
    for i in group.events:
        event = scenario.events[i]
        if not isinstance(event, StepEvent):
            continue
        before, settings = settings, overlaid(settings, event)
        found = known if settings is before else set(complaints(settings, scenario.dilation))
        for field, message in sorted(found - known):
            yield i, field if getattr(event, field) is not None else None, message
        known = found
        if event.queue is not None:
            rate = settings.rate if event.rate is None else event.rate
            try:
                held_bytes(group.ends[0], rate or Rate(0), event.queue)
            except InputError as error:
                yield i, "queue", str(error)


def _end(end: End, settings: LinkEnd, scenario: Scenario) -> Iterator[tuple[str | None, str]]:
    try:
        queue_bytes(end, settings, of_rack=end.link in scenario.racks)
    except InputError as error:
        yield None, str(error)
    for field, message in complaints(settings, scenario.dilation):
        yield field, f"{end}: {message}"


def _place(scenario: Scenario, end: End, group: str, field: str | None) -> Place:
    """The innermost entry under ``links`` that speaks of ``end``, and of ``field`` if there is one."""
    if end.link in scenario.racks:
        return ("racks", end.link, end.direction, *([field] if field else []))
    keys = [key for key in (end.link, group, DEFAULT) if key in scenario.links]
    for key in keys if field else ():
        if getattr(getattr(scenario.links[key], end.direction), str(field)) is not None:
            return ("links", key, end.direction, str(field))
    return ("links", keys[0], end.direction) if keys else ("links",)
