"""Several servers in namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from shards_rig import assert_two_servers_share_a_model

pytestmark = [pytest.mark.judged, pytest.mark.root, pytest.mark.timeout(240)]


def test_two_servers_share_a_model(tmp_path: Path, nothing_left: set[str]) -> None:
    assert_two_servers_share_a_model(tmp_path, "netns")
