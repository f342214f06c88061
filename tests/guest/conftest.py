"""Guest kernels for tests; nothing of them is there afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_rig import until_gone


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.guest)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    until_gone()
