"""Which tests reach which lines of the files to be mutated, and how long they take: one pass with coverage."""

# ruff: noqa: T201 - a command, which prints
from __future__ import annotations

import json
import resource
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import coverage
import pytest

ALWAYS = [
    "-q",
    "-s",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:terminalreporter",
    "-m",
    "not (optional or timed or nightly)",
]
ARGUMENTS = [*ALWAYS, "--hypothesis-profile=mutants"]


@dataclass(slots=True)
class Reach:
    """Processor seconds of every test that passes, and by file and line the tests that run it."""

    seconds: dict[str, float] = field(default_factory=dict)
    by_line: dict[str, dict[int, list[str]]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it, with line numbers as text."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Reach:
        """Read what ``save`` wrote."""
        read = json.loads(path.read_text())
        by_line = {
            file: {int(line): tests for line, tests in lines.items()}
            for file, lines in read["by_line"].items()
        }
        return cls(read["seconds"], by_line)


class Measuring:
    """Runs in a pytest of its own, over all tests of a group."""

    def __init__(self, sources: list[str]) -> None:
        self.reach = Reach()
        self._names = {str(Path(source).resolve()): source for source in sources}
        self._coverage = coverage.Coverage(
            data_file=None,
            include=list(self._names),
            concurrency=["thread", "greenlet"],
            config_file=False,
        )
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure a test with its fixtures."""
        self._coverage.start()
        self._coverage.switch_context(item.nodeid)
        began = processor_s()
        try:
            return (yield)
        finally:
            self.reach.seconds[item.nodeid] = processor_s() - began
            self._coverage.stop()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave out what fails or is skipped: it cannot tell a mutant from the product."""
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Take the lines out of coverage's data."""
        data = self._coverage.get_data()
        for test in self._failed:
            self.reach.seconds.pop(test, None)
        for file, name in self._names.items():
            lines = data.contexts_by_lineno(file)
            self.reach.by_line[name] = {
                line: [test for test in tests if test in self.reach.seconds]
                for line, tests in lines.items()
            }


def processor_s() -> float:
    """Of this process and those that it has waited for: unlike time, the same on a busy machine."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(tests: list[str], sources: list[str]) -> Reach:
    """Run ``tests`` (files) once in this process. Prints those that failed."""
    measuring = Measuring(sources)
    code = pytest.main([*ARGUMENTS, *tests], plugins=[measuring])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {code!r}: what the tests reach is not known")
    for test in sorted(measuring._failed):
        print(f"not used, since it does not pass: {test}")
    return measuring.reach
