"""Trying mutants: in a fork of a process that has everything imported and all tests collected.

A mutant within a function is put into the function that lives already: its code is replaced, whoever holds the
function. One that acts on import (a constant, a default) is tried in a fork of a process that has imported nothing of
the package yet. Nothing is written to the tree.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from measure import ARGUMENTS

from mutants import Mutant

Living = dict[tuple[str, str], list[types.FunctionType]]

MEMORY_BYTES = 4 << 30
"""What a mutant may take beyond what its fork begins with."""
END = b"\0"


class Trials:
    """Where results go, and what each test is worth: one that has killed a neighbour goes first."""

    def __init__(self, results: Path, seconds: dict[str, float], budget_s: float) -> None:
        self._results, self._seconds, self._budget_s = results, seconds, budget_s
        self._kills: dict[tuple[str, str | None, str], int] = {}

    def chosen(self, mutant: Mutant, tests: Sequence[str]) -> list[str]:
        """Those to be tried, in turn, within the budget."""

        def rank(test: str) -> tuple[int, float]:
            by_it = self._kills.get((mutant.path, mutant.function, test), 0)
            return -by_it, self._seconds[test]

        chosen, left = [], self._budget_s
        for test in sorted(tests, key=rank):
            left -= self._seconds[test]
            if left >= 0 or not chosen:
                chosen.append(test)
        return chosen

    def limit_s(self, tests: Sequence[str]) -> float:
        """How much of a processor they may take."""
        return 3.0 + 4 * sum(self._seconds[test] for test in tests)

    def note(self, mutant: Mutant, outcome: str, killers: list[str]) -> None:
        """Write down how a mutant ended."""
        for killer in killers:
            key = mutant.path, mutant.function, killer
            self._kills[key] = self._kills.get(key, 0) + 1
        line = json.dumps({"key": mutant.key, "outcome": outcome, "killers": killers})
        with self._results.open("a") as results:
            results.write(line + "\n")


class InFunctions:
    """A pytest plugin: instead of running the tests that were collected, fork for every mutant and run its tests."""

    def __init__(self, trials: Trials, work: list[tuple[Mutant, list[str]]]) -> None:
        self._trials, self._work = trials, work

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try all mutants."""
        items = {item.nodeid: item for item in session.items}
        living = functions_of({str(Path(mutant.path).resolve()) for mutant, _ in self._work})
        gc.collect()
        gc.freeze()  # memory that forks share is not written to by collecting garbage
        everything = list(items.values())
        unfit = set(forked(lambda tell: failures(everything, tell), 600.0)[1])
        for mutant, tests in self._work:
            chosen = self._trials.chosen(
                mutant, [test for test in tests if test in items.keys() - unfit]
            )
            trial = partial(_in_function, mutant, living, [items[test] for test in chosen])
            self._trials.note(mutant, *forked(trial, self._trials.limit_s(chosen)))
        return True


def _in_function(
    mutant: Mutant, living: Living, items: Sequence[pytest.Item], tell: Callable[[str], None]
) -> bool:
    replace_code(mutant, living)
    return failures(items, tell, most=1)


def on_import(trials: Trials, work: list[tuple[Mutant, list[str]]]) -> None:
    """Try the mutants that act on import, in this process, which must not have imported the package."""
    assert not any(name.partition(".")[0] == "testbed" for name in sys.modules)
    everything = sorted({test for _, tests in work for test in tests})
    files = sorted({test.partition("::")[0] for test in everything})
    for name in forked(partial(_needed, files), 600.0)[1]:
        with suppress(Exception):
            importlib.import_module(name)  # once for all forks
    unfit = set(forked(partial(_imported, None, everything), 600.0)[1])
    for mutant, tests in work:
        chosen = trials.chosen(mutant, [test for test in tests if test not in unfit])
        trial = partial(_imported, mutant, chosen)
        trials.note(mutant, *forked(trial, trials.limit_s(chosen) + 20))


def _needed(files: Sequence[str], tell: Callable[[str], None]) -> bool:
    """Tell of the modules of others that the tests import."""
    pytest.main([*ARGUMENTS, "--collect-only", *files])
    for name, module in list(sys.modules.items()):
        if "site-packages" in (getattr(module, "__file__", None) or "") and "testbed" not in name:
            tell(name)
    return False


def _imported(mutant: Mutant | None, tests: Sequence[str], tell: Callable[[str], None]) -> bool:
    if mutant:
        load_mutated(mutant)
    stop = ["-x"] if mutant else []
    return pytest.main([*ARGUMENTS, *stop, *tests], plugins=[Telling(tell)]) != pytest.ExitCode.OK


class Telling:
    """Says which test failed."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of a test is over."""
        if report.failed:
            self._tell(report.nodeid)


def failures(
    items: Sequence[pytest.Item], tell: Callable[[str], None], most: int | None = None
) -> bool:
    """Run ``items``, until ``most`` have failed; whether any has."""
    failed = 0
    for item, following in zip(items, [*items[1:], None], strict=True):
        reports = runtestprotocol(item, log=False, nextitem=following)
        if any(report.failed for report in reports):
            failed += 1
            tell(item.nodeid)
            if failed == most:
                break
    return failed > 0


def functions_of(files: set[str]) -> Living:
    """All functions of ``files`` (absolute) that live, also those within decorators, by file and ``co_qualname``."""
    living: Living = {}
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType) and each.__code__.co_filename in files:
            code = each.__code__
            living.setdefault((code.co_filename, code.co_qualname), []).append(each)
    return living


def replace_code(mutant: Mutant, living: Living) -> None:
    """Give the function of ``mutant`` its mutated code, whoever holds the function."""
    path = str(Path(mutant.path).resolve())
    codes = [
        code
        for code in _codes(compile(mutant.source(), path, "exec", dont_inherit=True))
        if code.co_qualname == mutant.function
    ]
    for function in living[path, mutant.function or ""]:
        line = function.__code__.co_firstlineno
        function.__code__ = min(codes, key=lambda code: abs(code.co_firstlineno - line))


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return [*inner, *(deeper for each in inner for deeper in _codes(each))]


def load_mutated(mutant: Mutant) -> None:
    """From now on the mutated file is what an import of it finds."""
    path, source = str(Path(mutant.path).resolve()), mutant.source()
    get_code = SourceFileLoader.get_code

    def mutated(self: SourceFileLoader, name: str) -> Any:
        if self.get_filename(name) == path:
            return compile(source, path, "exec", dont_inherit=True)
        return get_code(self, name)

    SourceFileLoader.get_code = mutated  # type: ignore[method-assign]


def forked(body: Callable[[Callable[[str], None]], bool], limit_s: float) -> tuple[str, list[str]]:
    """Run ``body`` in a fork: whether it killed, survived or timed out, and the tests that it told of.

    ``limit_s`` is of a processor. Ten times as long may pass, since the machine may be busy; whatever then has not used
    its processor time up is tried once more, since the machine may have been stopped.
    """
    outcome, tests = _forked(body, limit_s)
    if outcome == "stuck":
        outcome, tests = _forked(body, limit_s)
    return ("timed out" if outcome == "stuck" else outcome), tests


def _forked(body: Callable[[Callable[[str], None]], bool], limit_s: float) -> tuple[str, list[str]]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _in_child(body, writing, ceil(limit_s))
    os.close(writing)
    answered = select.select([reading], [], [], 10 * limit_s)[0]
    answer = b""
    while answered and (part := os.read(reading, 65536)):
        answer += part
        if answer.endswith(END):
            break
    os.close(reading)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests have left, too
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGXCPU:
        return "timed out", []
    if not answered:
        return "stuck", []
    survived, *tests = answer.removesuffix(END).decode().splitlines() or ["no"]
    return ("survived" if survived == "yes" else "killed"), tests


def _in_child(body: Callable[[Callable[[str], None]], bool], writing: int, limit_s: int) -> None:
    """Never returns."""
    failed, tests = True, []
    try:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
        failed = body(tests.append)
    except BaseException as error:
        tests.append(f"{type(error).__name__}: {error}".splitlines()[0])
    finally:
        os.write(writing, "\n".join(["no" if failed else "yes", *tests]).encode() + END)
        os._exit(0)
