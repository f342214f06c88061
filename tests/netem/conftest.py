"""Where this kernel has no netem, one guest kernel runs the tests of this folder, and the host reports each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_results import LIMIT_S, REPORTS, Reporter, Results, in_guest, run_in_guest
from lines_rig import Lines, make_lines

HERE = Path(__file__).parent
RESULTS = pytest.StashKey[Results]()


def pytest_configure(config: pytest.Config) -> None:
    if REPORTS:
        config.pluginmanager.register(Reporter(config, Path(REPORTS)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that share a guest have one worker run them; the first of them waits for the guest."""
    mine = [item for item in items if HERE in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.netem)
        if in_guest(config):
            item.add_marker(pytest.mark.timeout(LIMIT_S + 60))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Report what the guest found, instead of running the test here."""
    if HERE not in item.path.parents or not in_guest(item.config):
        return None
    stash = item.session.stash
    if RESULTS not in stash:
        together = [each for each in item.session.items if HERE in each.path.parents]
        stash[RESULTS] = run_in_guest(item.config, together)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in stash[RESULTS].of(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session")
def standing() -> Iterator[list[Lines]]:
    """Lines that tests take over from each other, if there are any."""
    held: list[Lines] = []
    yield held
    for made in held:
        made.close()


@pytest.fixture
def lines(standing: list[Lines]) -> Iterator[Lines]:
    """Two nodes whose links are not shaped; the agent must leave nothing of what a test has asked for."""
    if not standing:
        standing.append(make_lines())
    made = standing.pop()
    try:
        yield made
        made.restore()
        standing.append(made)
    finally:
        if not standing:
            made.close()
