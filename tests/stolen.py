"""Tests that measure time are measured again where the hypervisor had the processors meanwhile.

A virtual machine whose processors others use shows nothing about the product. Such a test that fails is tried again, at most
twice, and the suite says how often; one that fails on processors of its own has failed. Where others had even more than
``UNMEASURED`` of them in the last try, too, the test is skipped with that as its reason.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from testbed.records.manifest import THRESHOLDS
from testbed.runner.node_events import reading

TRIES = 3
UNMEASURED = 0.05
"""Share of the processors' time, taken by others in every try, with which nothing can be said of a product's timing."""


class Processors:
    """How much of the processors' time others on the same hardware took since this was made."""

    def __init__(self) -> None:
        self._before = reading()

    def stolen_share(self) -> float:
        """Of all processors' time, 0 to 1."""
        now = reading()
        whole_s = now.all_s - self._before.all_s
        return (now.stolen_s - self._before.stolen_s) / whole_s if whole_s > 0 else 0.0


def carry_out(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test that measures time, again where that was no measurement."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for left in reversed(range(TRIES)):
        processors = Processors()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        share = processors.stolen_share()
        if share <= THRESHOLDS.stolen_share or not any(report.failed for report in reports):
            break
        _note(item, share)
        if left:
            _forget(item)
        elif share > UNMEASURED:
            for report in reports:
                _excuse(item, report, share)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _note(item: pytest.Item, share: float) -> None:
    if path := os.environ.get("NARROWS_TRIED_AGAIN"):
        with Path(path).open("a") as file:
            file.write(f"{item.nodeid}: {share:.0%} of the processors' time was taken by others\n")


def _excuse(item: pytest.Item, report: pytest.TestReport, share: float) -> None:
    """Make a skipped test of a failed one."""
    if report.failed:
        path, line, _ = item.location
        why = f"Skipped: in each of {TRIES} tries others had processors, {share:.0%} in the last"
        report.outcome, report.longrepr = "skipped", (path, line or 0, why)


def _forget(item: pytest.Item) -> None:
    """Have the next try make its own fixtures: pytest keeps what failed ones raised."""
    assert isinstance(item, pytest.Function)
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            result = definition.cached_result
            if result is not None and result[2] is not None:
                definition.cached_result = None
    item._initrequest()
