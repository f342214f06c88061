"""The wheel with containers, away from the checkout: its image is the checkout's, made from the same files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wheel_rig import Installed, build, short_run

pytestmark = pytest.mark.docker


def test_run_in_containers_from_a_wheel(image: str, tmp_path: Path) -> None:
    installed = Installed(tmp_path / "installed", build(tmp_path), "sim", "docker")
    records = short_run(installed, "docker")
    assert json.loads((records / "manifest.json").read_text())["fabric"] == "docker"
    assert f'image: "{image}"' in (records / "compose.yaml").read_text()
