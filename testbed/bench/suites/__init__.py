"""The suites of ``testbed bench link`` by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from testbed.bench.result import Suite
from testbed.bench.setup import Setup
from testbed.errors import InputError

SUITES = {
    "static": "testbed.bench.suites.static:run",
    "replay": "testbed.bench.suites.replay:run",
    "swing": "testbed.bench.suites.swing:run",
    "lateness": "testbed.bench.suites.lateness:run",
    "outage": "testbed.bench.suites.outage:run",
    "departures": "testbed.bench.suites.departures:run",
    "completion": "testbed.bench.suites.completion:run",
    "dilation": "testbed.bench.suites.dilation:run",
    "aa": "testbed.bench.suites.again:run",
    "nodes": "testbed.bench.suites.nodes:run",
    "certificate": "testbed.bench.suites.certificate:run",
    "agreement": "testbed.bench.suites.agreement:run",
}
"""Every suite and the function that carries it out."""


def suite(name: str) -> Callable[[Setup], Suite]:
    """The function of a suite. Raises InputError for an unknown one."""
    if name not in SUITES:
        raise InputError(
            f"there is no suite {name!r}", where="--suite", hint=f"There are {', '.join(SUITES)}"
        )
    module, _, function = SUITES[name].partition(":")
    found: Callable[[Setup], Suite] = getattr(import_module(module), function)
    return found
