"""Fabrics of containers for tests: those that tests only look at stand for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rights_rig import run_in
from standing import FOUR, Standing, assert_gone, standing

from testbed.host import images


@pytest.fixture(scope="session")
def image() -> str:
    return images.ensure()


@pytest.fixture(scope="session")
def plain(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    """A server and a worker; whoever pauses or kills one of them takes a fabric of his own."""
    with standing(tmp_path_factory.mktemp("plain")) as made:
        yield made
        assert made.fabric.dead() == {}


@pytest.fixture(scope="session")
def casting(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    """Four workers that may multicast."""
    with standing(tmp_path_factory.mktemp("casting"), FOUR, multicast=True) as made:
        yield made
        assert made.fabric.dead() == {}


@pytest.fixture
def own(image: str, tmp_path: Path) -> Iterator[Standing]:
    """A server and a worker that a test may do to what it likes."""
    with standing(tmp_path) as made:
        yield made


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Of the runs whose directories are in the test's folder."""
    yield
    if list(tmp_path.glob("runs/*/compose.yaml")):
        assert_gone(run_in(tmp_path))
