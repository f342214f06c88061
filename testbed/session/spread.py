"""Whether a model can be spread over a scenario's servers, as each of its algorithms parts it."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.algorithms import Algorithm
from testbed.compress.layout import Layout
from testbed.compress.shards import pieces
from testbed.errors import InputError
from testbed.scenario.model import Scenario, Train


def layout_of(train: Train) -> Layout:
    """Of the model that is trained; nothing is allocated. Loads torch."""
    from testbed.train.models import outline

    named = outline(train.model, train.task, train.width).named_parameters()
    return Layout.of((name, tuple(parameter.shape)) for name, parameter in named)


def check_spread(scenario: Scenario, algorithms: Iterable[Algorithm], where: str) -> None:
    """Raises InputError that names the first algorithm with too few parts for the servers.

    Where there are several servers it loads torch, and raises ImportError without.
    """
    groups = scenario.nodes.values()
    servers = sum(group.count or 1 for group in groups if group.role == "server")
    if servers <= 1:
        return
    layout = layout_of(scenario.train)
    for algorithm in algorithms:
        try:
            pieces(layout, servers, algorithm.bucket_bytes)
        except InputError as error:
            message = f"algorithm {algorithm.name!r}: {error.message}"
            raise InputError(message, where=where, hint=error.hint) from None
