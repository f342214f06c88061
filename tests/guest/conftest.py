"""Guest kernels for tests; nothing of them is there afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_rig import folders, kernels

_PATIENCE_S = 5.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.guest)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = kernels(), folders()
    yield
    give_up = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up and not (kernels() <= before[0] and folders() <= before[1]):
        time.sleep(0.05)
    assert kernels() <= before[0]
    assert folders() <= before[1]
