"""Tests that measure time are measured again where the machine stood still, or others had the processors or the devices.

A virtual machine whose processors others use shows nothing about the product. Such a test that fails is tried again, at most
twice, and the suite says how often; one that fails on processors of its own has failed. Where others had even more than
``UNMEASURED`` of them in the last try, too, or the machine stood still in it for longer than a link's change may be late, the
test is skipped with that as its reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import stalls
from _pytest.runner import runtestprotocol

from testbed.records.manifest import THRESHOLDS
from testbed.runner.node_events import reading

TRIES = 3
UNMEASURED = 0.05
"""Share of the processors' time, taken by others in every try, with which nothing can be said of a product's timing."""
STALLED_S = THRESHOLDS.lateness_p99_ms / 1e3
"""A processor that ran nothing for so long, in every try, likewise; half of it is enough for another try."""


class Lacking(NamedTuple):
    """What a test could not have of the processors."""

    stolen: float
    """Share of all processors' time that others on the same hardware took, 0 to 1."""
    stalled_s: float
    """The longest time for which a real-time thread waited for one of them."""
    locked_s: float = 0.0
    """The longest time for which somebody had the kernel's lock on network devices. It excuses nothing: it may be the product."""

    def doubtful(self) -> bool:
        """Return whether what fails with so little may have failed for it."""
        stolen = self.stolen > THRESHOLDS.stolen_share
        return stolen or max(self.stalled_s, self.locked_s) > STALLED_S / 2

    def excuses(self) -> bool:
        """Return whether nothing can be said of a product's timing."""
        return self.stolen > UNMEASURED or self.stalled_s > STALLED_S

    def __str__(self) -> str:
        return (
            f"{self.stolen:.0%} of the processors' time was taken by others, "
            f"one stood still for {self.stalled_s * 1e3:.0f} ms, devices were locked for {self.locked_s * 1e3:.0f} ms"
        )


class Processors:
    """For a ``with`` block: what is lacking since its begin."""

    def __enter__(self) -> Processors:
        command = [sys.executable, "-S", "-E", stalls.__file__]
        self._looking = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._waits_s()  # until it looks
        self._before = reading()
        return self

    def __exit__(self, *_: object) -> None:
        self._looking.communicate()

    def lacking(self) -> Lacking:
        """What others on the same hardware, or nobody, had since the last call."""
        now = reading()
        whole_s, stolen_s = now.all_s - self._before.all_s, now.stolen_s - self._before.stolen_s
        self._before = now
        return Lacking(stolen_s / whole_s if whole_s > 0 else 0.0, *self._waits_s())

    def _waits_s(self) -> tuple[float, float]:
        assert self._looking.stdin is not None and self._looking.stdout is not None
        print(file=self._looking.stdin, flush=True)
        stalled_s, locked_s = map(float, self._looking.stdout.readline().split())
        return stalled_s, locked_s


def carry_out(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test that measures time, again where that was no measurement."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    with Processors() as processors:
        for left in reversed(range(TRIES)):
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            lacking = processors.lacking()
            if not lacking.doubtful() or not any(report.failed for report in reports):
                break
            _note(item, lacking)
            if left:
                _forget(item)
            elif lacking.excuses():
                for report in reports:
                    _excuse(item, report, lacking)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _note(item: pytest.Item, lacking: Lacking) -> None:
    if path := os.environ.get("NARROWS_TRIED_AGAIN"):
        with Path(path).open("a") as file:
            file.write(f"{item.nodeid}: {lacking}\n")


def _excuse(item: pytest.Item, report: pytest.TestReport, lacking: Lacking) -> None:
    """Make a skipped test of a failed one."""
    if report.failed:
        path, line, _ = item.location
        why = f"Skipped: each of {TRIES} tries lacked processors; in the last {lacking}"
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
