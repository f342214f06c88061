"""Which events concern which link directions: directions alike are one entry, however many they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from testbed.scenario.events import LinkEvent, NodeEvent, PartitionEvent
from testbed.scenario.expand import end_settings, groups_of_nodes
from testbed.scenario.link import LinkEnd
from testbed.scenario.model import Scenario
from testbed.scenario.shape import End

ALL = "all"
"""What an event calls the links of all nodes. Racks are meant by their names only."""


class Alike(NamedTuple):
    """Ends with the same settings that the same events concern, by number and in order of time."""

    settings: LinkEnd
    """Where an end is shaped is left out (``at`` is None)."""
    events: tuple[int, ...]
    ends: list[End]


def alike(scenario: Scenario) -> list[Alike]:
    """All link directions, those with the same settings and events together."""
    groups = groups_of_nodes(scenario)
    concerned, placeless = _Concerned(scenario), _Placeless()
    found: dict[tuple[int, tuple[int, ...]], Alike] = {}
    for end, settings in end_settings(scenario).items():
        own = placeless.of(settings)
        names = (end.link, groups[end.link], ALL) if end.link in groups else (end.link,)
        events = concerned.by(names, end.direction)
        found.setdefault((id(own), events), Alike(own, events, [])).ends.append(end)
    return list(found.values())


def link_events(scenario: Scenario, numbers: Iterable[int]) -> list[LinkEvent]:
    """Events by their numbers; those of nodes are left out."""
    events = (scenario.events[i] for i in numbers)
    return [event for event in events if not isinstance(event, NodeEvent)]


class _Placeless:
    """Settings without their place: one object for all that are equal, found quickly."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[LinkEnd, LinkEnd]] = {}
        self._equal: dict[LinkEnd, LinkEnd] = {}

    def of(self, settings: LinkEnd) -> LinkEnd:
        """``settings`` with ``at`` left out."""
        if id(settings) not in self._known:  # kept there, so that no other gets its id
            plain = settings.model_copy(update={"at": None})
            self._known[id(settings)] = settings, self._equal.setdefault(plain, plain)
        return self._known[id(settings)][1]


class _Concerned:
    """The events of a scenario by the names they name."""

    def __init__(self, scenario: Scenario) -> None:
        self._by_time = [(i, event) for i, event in _links(scenario)]
        self._by_time.sort(key=lambda entry: entry[1].at)
        self._naming: dict[str, list[int]] = {}
        for order, (_, event) in enumerate(self._by_time):
            for name in dict.fromkeys(event.links):
                self._naming.setdefault(name, []).append(order)
        self._known: dict[tuple[str, tuple[str, ...]], tuple[int, ...]] = {}

    def by(self, names: tuple[str, ...], direction: str) -> tuple[int, ...]:
        """Numbers of the events that name one of ``names`` and concern ``direction``, by time."""
        named = tuple(name for name in names if name in self._naming)
        key = direction, named
        if key not in self._known:
            orders = sorted({order for name in named for order in self._naming[name]})
            events = (self._by_time[order] for order in orders)
            self._known[key] = tuple(i for i, event in events if _concerns(event, direction))
        return self._known[key]


def _links(scenario: Scenario) -> Iterator[tuple[int, LinkEvent]]:
    for i, event in enumerate(scenario.events):
        if not isinstance(event, NodeEvent):
            yield i, event


def _concerns(event: LinkEvent, direction: str) -> bool:
    return isinstance(event, PartitionEvent) or event.direction in {direction, "both"}
