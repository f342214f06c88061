"""Fabrics of two containers for tests; everything they made is gone afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from standing import SPECS, Standing

from testbed.fabric.base import RunContext
from testbed.fabric.docker import DockerFabric
from testbed.setup import images


@pytest.fixture(scope="session")
def image() -> str:
    return images.ensure()


@pytest.fixture
def stand(image: str, tmp_path: Path) -> Iterator[Callable[[], Standing]]:
    """Makes fabrics; destroys them at the end."""
    made: list[DockerFabric] = []

    def make() -> Standing:
        run = secrets.token_hex(3)
        fabric = DockerFabric(RunContext(run, tmp_path / run, "a-token", quiet=True))
        made.append(fabric)
        networks = fabric.create(SPECS)
        return Standing(run, fabric, networks, fabric.start())

    yield make
    for fabric in made:
        fabric.destroy()
