"""The wheel on real links, away from the checkout: with the fewest libraries, and with those for training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wheel_rig import Installed, build, short_run

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


def test_smallest_installation_replays_a_trace(wheel: Path, tmp_path: Path) -> None:
    smallest = Installed(tmp_path, wheel)
    smallest.run("init", "first")
    trace = "first/traces/cloud.csv"
    done = smallest.call(
        [str(smallest.programs / "testbed"), "replay", trace, "--seconds", "3", "--json"], code=None
    )
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["verdict"]["state"] and "narrows[report]" in done.stderr
    (records,) = smallest.folder.glob("**/links.jsonl")
    assert records.stat().st_size > 0 and not list(smallest.folder.glob("**/*.png"))


def test_run_in_namespaces_from_a_wheel(wheel: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, wheel, "sim")
    records = short_run(installed, "netns")
    assert json.loads((records / "manifest.json").read_text())["fabric"] == "netns"
    assert len(list((records / "events").glob("worker-*.jsonl"))) == 4
