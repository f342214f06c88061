"""Tests that need root, an engine or a GPU are skipped where there is none, and must run where there is.

``NARROWS_REQUIRE=root,docker`` (set by ``make test`` to what this machine has) turns a skip into a failure, except
of tests for something that is not in the list, and of tests marked ``optional``. A GPU is never required.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import stolen
from command_rig import SCENARIO, Write, ours, settle
from flower_rig import flower_python
from groups_rig import no_groups_left
from hypothesis import HealthCheck, settings
from kernel_rig import has_netem, lacks_guest
from long_files import LONG, lengthen

from testbed.host import docker_engine
from testbed.host.paths import has_gpu

# Whoever starts the tests may ignore signals (``nohup``, a shell in the background); commands would go on ignoring them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

NIGHTLY = bool(os.environ.get("NARROWS_NIGHTLY"))
"""Whether what is too long for every day runs as well, and properties are tried on examples nobody has chosen."""

# How long an example takes is the machine's matter. Every day the same examples; at night others, and failures are kept.
_ALWAYS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("daily", derandomize=True, database=None, **_ALWAYS)
settings.register_profile("nightly", **_ALWAYS)
settings.load_profile("nightly" if NIGHTLY else "daily")

REQUIRED = frozenset(filter(None, os.environ.get("NARROWS_REQUIRE", "").split(",")))
OPTIONAL = frozenset({"root", "docker", "guest", "netem", "gpu", "optional"}) - REQUIRED


@functools.cache
def lacking(need: str) -> str:
    """Why tests with this mark cannot run here; empty when they can."""
    match need:
        case "root":
            return "" if os.geteuid() == 0 else "needs root"
        case "docker":
            return (
                ""
                if docker_engine.version()
                else "needs a Docker engine that answers (`make setup`)"
            )
        case "guest":
            return lacks_guest()
        case "netem":
            return "" if has_netem() else lacks_guest()
        case "gpu":
            return "" if has_gpu() else "needs a CUDA device, and this machine has none"
        case _:
            return ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is nightly; begin with what takes long."""
    late = [item for item in items if not NIGHTLY and item.get_closest_marker("nightly")]
    if late:
        config.hook.pytest_deselected(items=late)
        items[:] = [item for item in items if item not in set(late)]
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Set limits of time; keep thousands of tests out of every later collection of garbage, of which each run begins with one."""
    lengthen(session.items, float(session.config.getini("timeout")))
    gc.collect()
    gc.freeze()


TOGETHER = {
    "guest": re.compile(r"/netem/|/test_guest_boot"),
    "trained": re.compile(r"/netns/test_((compressed_|controllers_)?run|messages_on_links)\.py"),
}
"""Files that share what takes long to make, by a name for it."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """One worker for a file, whose tests may share what they need, and for files that are named ``TOGETHER``.

    xdist's own groups have no effect: it names tests by an attribute that pytest 9 does not read.
    """
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return next((group for group, files in TOGETHER.items() if files.search(file)), file)

    return ByFile(config, log)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    return stolen.carry_out(item, nextitem) if item.get_closest_marker("timed") else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers():
        if reason := lacking(mark.name):
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    may_skip = any(mark.name in OPTIONAL for mark in item.iter_markers())
    if REQUIRED and report.skipped and not may_skip and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"must run here, but: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if REQUIRED and report.skipped:
        report.outcome, report.longrepr = "failed", f"must run here, but: {report.longrepr}"
    return report


@pytest.fixture
def nothing_left() -> Iterator[set[str]]:
    """Of what a test's runs make: objects of the host and the engine, processes, and control groups."""
    before = ours()
    with no_groups_left():
        yield before
        assert settle(before) == set()


@pytest.fixture(scope="session")
def with_flower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flower_python(tmp_path_factory.mktemp("flower"))


@pytest.fixture
def scenario(tmp_path: Path) -> Write:
    def write(steps: int = 25, algorithms: str = "topk-0.15") -> str:
        path = tmp_path / "small.yaml"
        path.write_text(SCENARIO.format(steps=steps, algorithms=algorithms))
        return str(path)

    return write
