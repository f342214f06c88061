"""Namespaces with links, which must leave nothing behind, and one training run for many tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from netns_rig import Rig, standing
from training_run import Trained, train


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.root)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for journals."""
    folder = tmp_path / "state"
    monkeypatch.setenv("NARROWS_STATE", str(folder))
    return folder


@pytest.fixture
def rig(tmp_path: Path, state: Path) -> Iterator[Rig]:
    with standing(tmp_path, state) as made:
        yield made


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One run of many algorithms; ``tests/conftest.py`` gives its users to one worker."""
    return train(tmp_path_factory.mktemp("trained"))
