"""The wheel on real links, away from the checkout, with no libraries but those of training."""

from __future__ import annotations

import json
from pathlib import Path

from wheel_rig import Installed, build, short_run


def test_run_in_namespaces_from_a_wheel(tmp_path: Path) -> None:
    installed = Installed(tmp_path / "installed", build(tmp_path), "sim")
    records = short_run(installed, "netns")
    assert json.loads((records / "manifest.json").read_text())["fabric"] == "netns"
    assert len(list((records / "events").glob("worker-*.jsonl"))) == 4
