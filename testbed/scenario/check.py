"""What models cannot see: whether the parts of a scenario fit together. Pure; finds all it can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from math import inf
from typing import Any

from testbed.errors import InputError
from testbed.registry import Registry
from testbed.scenario.check_events import check_events
from testbed.scenario.check_links import check_links, check_steps
from testbed.scenario.check_nodes import check_node_events, check_nodes, check_racks, check_traffic
from testbed.scenario.events import FlapEvent, TraceEvent
from testbed.scenario.model import Derived, Scenario
from testbed.scenario.names import Names, check_names
from testbed.scenario.paced import check_paces
from testbed.scenario.problems import MAX_PROBLEMS, Problem
from testbed.scenario.reach import alike
from testbed.scenario.round_trips import longest_round_trip
from testbed.scenario.timeline import build
from testbed.scenario.yaml_text import Place
from testbed.traces import RateTrace
from testbed.units import Duration, Rate

MAX_NODES = 12_000
MAX_CONCERNED = 1_000_000
"""Events, and repetitions of them, times the different links that each concerns."""
MAX_CHANGES = 20_000_000
"""A history with more of them, repetitions left out, takes too long to look at."""


def check(
    scenario: Scenario, traces: Mapping[str, RateTrace], *, trains: bool = True
) -> list[Problem]:
    """What is wrong, up to ``MAX_PROBLEMS``; ``traces`` are those that could be read, by ``key``.

    ``trains``: whether algorithms and training matter; to somebody's own job they do not.
    """
    problems = list(islice(_network(scenario, traces), MAX_PROBLEMS))
    if trains:
        problems += [*_training(scenario), *_algorithms(scenario), *_seeds(scenario)]
    if not problems and all(
        event.key in traces for event in scenario.events if isinstance(event, TraceEvent)
    ):
        problems += _history(scenario, traces)
    return problems


def _network(scenario: Scenario, traces: Mapping[str, RateTrace]) -> Iterator[Problem]:
    """Nodes, links, and what happens to them; where nodes are wrong, nothing more."""
    wrong = list(check_nodes(scenario))
    if sum(group.count or 1 for group in scenario.nodes.values()) > MAX_NODES:
        wrong.append(Problem(("nodes",), f"more than {MAX_NODES} nodes"))
    else:
        wrong += islice(check_names(scenario), MAX_PROBLEMS)
    yield from wrong
    if wrong:
        return
    names = Names(scenario)
    yield from check_links(scenario, names)
    yield from check_racks(scenario, names)
    yield from check_events(scenario, traces, names)
    if _concerned(scenario) > MAX_CONCERNED:
        yield Problem(("events",), "too many events for so many different links: use fewer")
        return
    yield from check_steps(scenario)
    yield from check_paces(scenario, names)
    yield from check_node_events(scenario, names)
    yield from check_traffic(scenario, names)


def _concerned(scenario: Scenario) -> int:
    """How many times something happens to a link, links alike counted once; of traces the beginning."""
    times = [event.times if isinstance(event, FlapEvent) else 1 for event in scenario.events]
    return sum(times[i] for group in alike(scenario) for i in group.events)


def _training(scenario: Scenario) -> Iterator[Problem]:
    from testbed.train.models import models
    from testbed.train.tasks import tasks

    train, stop = scenario.train, scenario.train.stop
    if stop.steps is None and stop.epochs is None and stop.accuracy is None:
        yield Problem(("train", "stop"), "no end: give steps, epochs or accuracy")
    if (train.recorded is not None) != (train.gradients == "recorded"):
        yield Problem(
            ("train", "recorded"), "`gradients: recorded` and the run's directory belong together"
        )
    yield from _known(("train", "task"), tasks, train.task)
    yield from _known(("train", "model"), models, train.model)


def _known(place: Place, registry: Registry[Any], name: str) -> Iterator[Problem]:
    if name not in registry:  # else it would be loaded, and torch with it
        yield from _caught(place, lambda: registry.get(name))


def _algorithms(scenario: Scenario) -> Iterator[Problem]:
    from testbed.algorithms import check_momentum, check_nodes, resolve

    momentum = scenario.train.optimizer.momentum

    def check_one(entry: str | Derived) -> None:
        row = resolve(entry)
        check_momentum(row, momentum)
        check_nodes(row, scenario)

    if not scenario.algorithms:
        yield Problem(("algorithms",), "no algorithm: name one, such as `none`")
    for i, entry in enumerate(scenario.algorithms):
        yield from _caught(("algorithms", i), partial(check_one, entry))
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
    place = ("events" if scenario.events else "links",)
    if timeline.weight() > MAX_CHANGES:
        yield Problem(place, f"more than {MAX_CHANGES} changes in all: use shorter or fewer events")
        return
    length, end = timeline.longest_outage_s()
    if 0 < timeline.lowest_rate() < scenario.dilation:
        lowest = Rate(timeline.lowest_rate())
        yield Problem(("dilation",), f"the lowest rate, {lowest}, would fall below 1 bit/s")
    if length == inf:
        yield Problem(
            place,
            f"{end} is at rate 0 for good: give it service again",
        )
        return
    trip = longest_round_trip(scenario, timeline)
    if length + trip.time_s >= scenario.peer_timeout:
        outage = f"the longest outage, {Duration(length)} of {end}" if length else ""
        way = f"the way there and back, {trip}" if trip.time_s else ""
        yield Problem(
            ("peer_timeout",),
            f"{scenario.peer_timeout} is not longer than {' and '.join(filter(None, (outage, way)))}: nodes "
            f"would give each other up; write more than {Duration(round(length + trip.time_s, 9))}",
        )


def _caught(place: Place, action: Callable[[], object]) -> Iterator[Problem]:
    try:
        action()
    except InputError as error:
        yield Problem(place, str(error))


def _repeated(names: list[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
