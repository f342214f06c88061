"""Where this kernel has no netem, one guest kernel runs the tests of this folder, and the host reports each of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from guest_results import REPORTS, Reporter, Results, in_guest, run_in_guest

HERE = Path(__file__).parent
RESULTS = pytest.StashKey[Results]()


def pytest_configure(config: pytest.Config) -> None:
    if REPORTS:
        config.pluginmanager.register(Reporter(config, Path(REPORTS)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.netem)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Before the first test: the guest's time does not count as that of one of them."""
    items = [item for item in session.items if HERE in item.path.parents]
    if items and in_guest(session.config):
        session.stash[RESULTS] = run_in_guest(session.config, items)


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Report what the guest found, instead of running the test here."""
    results = item.session.stash.get(RESULTS, None)
    if results is None or HERE not in item.path.parents:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in results.of(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
