"""Running tests in a guest, and their reports on the way back: a line of JSON for each."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
from kernel_rig import has_netem, lacks_guest

from testbed.errors import NarrowsError
from testbed.host.uml.guest import run
from testbed.host.uml.inside import GuestOrder, slower

LIMIT_S = 900.0
_TEST_LIMIT_S = 240.0
_VARIABLE = "NARROWS_GUEST_REPORTS"
REPORTS = os.environ.get(_VARIABLE)
"""In the guest, the file to write reports to."""
_TAIL = 3000


def in_guest(config: pytest.Config) -> bool:
    """Whether this is a host that must have the tests run in a guest, and can."""
    here = REPORTS or has_netem() or config.option.collectonly
    return not here and not lacks_guest()


class Results:
    """What the guest reported, by test; ``problem`` is why a test has no report."""

    def __init__(self, reports: list[pytest.TestReport], problem: str) -> None:
        self.reports, self.problem = reports, problem

    def of(self, item: pytest.Item) -> list[pytest.TestReport]:
        """The reports of one test; where there are none, a failure that says why."""
        found = [report for report in self.reports if report.nodeid == item.nodeid]
        for report in found:
            report.nodeid = item.nodeid
        if any(report.when == "teardown" for report in found):
            return found
        return [*found, self._lost(item)]

    def _lost(self, item: pytest.Item) -> pytest.TestReport:
        why = f"the guest reported nothing of the end of this test: {self.problem}"
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")


def run_in_guest(config: pytest.Config, items: list[pytest.Item]) -> Results:
    """Boot a guest that runs these tests."""
    with tempfile.TemporaryDirectory(prefix="narrows-reports-") as name:
        folder = Path(name)
        reports = folder / "reports.jsonl"
        with (folder / "output").open("w+") as output:
            problem = _boot(config, items, reports, output.fileno())
            output.seek(0)
            said = output.read()[-_TAIL:]
        return Results(_read(config, reports), f"{problem}; it wrote:\n{said}")


def _boot(config: pytest.Config, items: list[pytest.Item], reports: Path, output: int) -> str:
    """What became of the guest, in words."""
    limits = ["-o", f"timeout={_TEST_LIMIT_S:g}", "-p", "no:cacheprovider"]
    tests = [item.nodeid for item in items]
    order = GuestOrder(
        [sys.executable, "-m", "pytest", "-q", "--tb=long", *limits, *tests],
        writable=[reports.parent],
        cwd=config.rootpath,
        environment=slower() | {_VARIABLE: str(reports)},
    )
    try:
        return f"pytest ended with {run(order, limit_s=LIMIT_S, output=output, errors=output)}"
    except NarrowsError as error:
        return str(error)


def _read(config: pytest.Config, path: Path) -> list[pytest.TestReport]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [_report(config, json.loads(line)) for line in lines]


def _report(config: pytest.Config, data: object) -> pytest.TestReport:
    """Where a test was skipped is a tuple to pytest, which JSON does not know."""
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(
        config=config, data=data
    )
    if isinstance(report.longrepr, list):
        file, line, reason = report.longrepr
        report.longrepr = (file, line, reason)
    return report


class Reporter:
    """A plugin of the pytest in the guest: leaves every report for the host."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self.config, self.path = config, path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """On the host's disk when this returns, whatever becomes of the guest."""
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        with self.path.open("a") as file:
            file.write(json.dumps(data) + "\n")
            file.flush()
            os.fsync(file.fileno())
