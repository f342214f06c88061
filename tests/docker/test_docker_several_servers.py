"""Several servers in containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from shards_rig import assert_two_servers_share_a_model

pytestmark = [pytest.mark.docker, pytest.mark.nightly, pytest.mark.timeout(400)]


@pytest.mark.usefixtures("image")
def test_two_servers_share_a_model(tmp_path: Path) -> None:
    assert_two_servers_share_a_model(tmp_path, "docker")
