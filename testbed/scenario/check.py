"""What models cannot see: whether the parts of a scenario fit together. Pure; finds all it can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any

from testbed.errors import InputError
from testbed.registry import Registry
from testbed.scenario.check_links import check_events, check_links
from testbed.scenario.expand import DEFAULT, node_names
from testbed.scenario.model import Derived, Scenario
from testbed.scenario.problems import Problem
from testbed.scenario.timeline import ALL, build
from testbed.scenario.yaml_text import Place
from testbed.traces import RateTrace
from testbed.units import Duration, Rate

MAX_NODES = 10_000


def check(scenario: Scenario, traces: Mapping[str, RateTrace]) -> list[Problem]:
    """Everything that is wrong; ``traces`` are those that could be read, by the events' ``file``."""
    problems = list(_nodes(scenario))
    if not problems:
        problems += [*check_links(scenario), *check_events(scenario, traces)]
    problems += [*_training(scenario), *_algorithms(scenario), *_seeds(scenario)]
    if not problems and all(
        event.file in traces for event in scenario.events if event.kind == "trace"
    ):
        problems += _history(scenario, traces)
    return problems


def _nodes(scenario: Scenario) -> Iterator[Problem]:
    servers = [name for name, group in scenario.nodes.items() if group.role == "server"]
    workers = [name for name, group in scenario.nodes.items() if group.role == "worker"]
    if not servers:
        yield Problem(("nodes",), "no server: add `server: {role: server}`")
    for name in servers[1:]:
        yield Problem(
            ("nodes", name), f"a second server beside {servers[0]!r}: one is served for now"
        )
    for name in servers[:1]:
        if (scenario.nodes[name].count or 1) > 1:
            yield Problem(("nodes", name, "count"), "more than one server: leave `count` out")
    if not workers:
        yield Problem(("nodes",), "no worker: add `worker: {role: worker, count: 4}`")
    if sum(group.count or 1 for group in scenario.nodes.values()) > MAX_NODES:
        yield Problem(("nodes",), f"more than {MAX_NODES} nodes")
    else:
        yield from _names(scenario)


def _names(scenario: Scenario) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for group in scenario.nodes:
        if group in {DEFAULT, ALL}:
            yield Problem(("nodes", group), f"{group!r} means something else: use another name")
        for name in node_names(scenario, group):
            other = owners.setdefault(name, group)
            if other != group or (name != group and name in scenario.nodes):
                yield Problem(
                    ("nodes", group), f"two things are called {name!r}: use other group names"
                )


def _training(scenario: Scenario) -> Iterator[Problem]:
    from testbed.train.models import models
    from testbed.train.tasks import tasks

    train, stop = scenario.train, scenario.train.stop
    if stop.steps is None and stop.epochs is None and stop.accuracy is None:
        yield Problem(("train", "stop"), "no end: give steps, epochs or accuracy")
    yield from _known(("train", "task"), tasks, train.task)
    yield from _known(("train", "model"), models, train.model)


def _known(place: Place, registry: Registry[Any], name: str) -> Iterator[Problem]:
    if name not in registry:  # else it would be loaded, and torch with it
        yield from _caught(place, lambda: registry.get(name))


def _algorithms(scenario: Scenario) -> Iterator[Problem]:
    from testbed.algorithms import resolve

    if not scenario.algorithms:
        yield Problem(("algorithms",), "no algorithm: name one, such as `none`")
    for i, entry in enumerate(scenario.algorithms):
        yield from _caught(("algorithms", i), lambda e=entry: resolve(e))  # type: ignore[misc]
    names = [entry.name if isinstance(entry, Derived) else entry for entry in scenario.algorithms]
    for name in _repeated(names):
        yield Problem(("algorithms",), f"{name!r} is there twice")


def _seeds(scenario: Scenario) -> Iterator[Problem]:
    if not scenario.seeds:
        yield Problem(("seeds",), "no seed: give one, such as [1]")
    for seed in _repeated([str(seed) for seed in scenario.seeds]):
        yield Problem(("seeds",), f"seed {seed} is there twice")


def _history(scenario: Scenario, traces: Mapping[str, RateTrace]) -> Iterator[Problem]:
    """Dilation must leave a rate, and an outage must not look like the death of a node."""
    timeline = build(scenario, traces)
    length, end = timeline.longest_outage_s()
    if 0 < timeline.lowest_rate() < scenario.dilation:
        lowest = Rate(timeline.lowest_rate())
        yield Problem(("dilation",), f"the lowest rate, {lowest}, would fall below 1 bit/s")
    if length == inf:
        yield Problem(
            ("events" if scenario.events else "links",),
            f"{end} is at rate 0 for good: give it service again",
        )
    elif length >= scenario.peer_timeout:
        yield Problem(
            ("peer_timeout",),
            f"{scenario.peer_timeout} is not longer than the longest outage, {Duration(length)} of "
            f"{end}: nodes would give each other up; make it longer",
        )


def _caught(place: Place, action: Callable[[], object]) -> Iterator[Problem]:
    try:
        action()
    except InputError as error:
        yield Problem(place, str(error))


def _repeated(names: list[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
