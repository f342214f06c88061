"""Recorded paces of a scenario, read from their files; and whether its paces are anybody's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from testbed.errors import InputError
from testbed.scenario.expand import groups_of_nodes
from testbed.scenario.model import Scenario
from testbed.scenario.names import Names
from testbed.scenario.pace import Pace, RecordedPace, pace_of
from testbed.scenario.problems import Problem
from testbed.scenario.yaml_text import Place
from testbed.train.pace_file import read_step_times


def recorded_paces(
    scenario: Scenario, folder: Path
) -> tuple[dict[str, tuple[float, ...]], list[Problem]]:
    """Step times in seconds by ``key``, and what is wrong with their files; ``folder``: where paths start."""
    found: dict[str, tuple[float, ...]] = {}
    problems: list[Problem] = []
    for place, pace in _written(scenario):
        if isinstance(pace, RecordedPace) and pace.key not in found:
            try:
                found[pace.key] = read_step_times(folder / pace.file, pace.column)
            except InputError as error:
                problems.append(Problem((*place, "file"), str(error)))
    return found, problems


def check_paces(scenario: Scenario, names: Names) -> Iterator[Problem]:
    """Paces and factors are of workers, and there is one for everybody."""
    train = scenario.train
    for key, given in (("paces", train.paces), ("slow", train.slow)):
        if given and train.pace is None:
            yield Problem(("train", key), "give the others a time as well: `pace: 200 ms`")
        for name in given:
            if name not in names.groups:
                yield Problem(("train", key, name), names.unknown(name))
            elif scenario.nodes[names.groups[name]].role != "worker":
                yield Problem(("train", key, name), f"{name!r} is no worker: only they compute")


def worker_paces(scenario: Scenario) -> dict[str, Pace | None]:
    """Of every worker by name; ``scenario``'s times, model or wall."""
    train, found = scenario.train, groups_of_nodes(scenario)
    return {
        node: pace_of(node, group, train.pace, train.paces, train.slow)
        for node, group in found.items()
        if scenario.nodes[group].role == "worker"
    }


def _written(scenario: Scenario) -> Iterator[tuple[Place, Pace]]:
    if scenario.train.pace is not None:
        yield ("train", "pace"), scenario.train.pace
    for name, pace in scenario.train.paces.items():
        yield ("train", "paces", name), pace
