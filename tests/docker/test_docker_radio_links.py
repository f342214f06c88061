"""The same in containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_rig import Command
from radio_links import write

pytestmark = [pytest.mark.judged, pytest.mark.nightly, pytest.mark.timed, pytest.mark.timeout(280)]


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_a_replay_is_what_was_asked(seed: int, tmp_path: Path, nothing_left: set[str]) -> None:
    scenario = write(tmp_path, workers=4, seconds=60, seed=seed)
    options = ["--seconds", "60", "--quiet", "--fabric", "docker"]
    Command(tmp_path, "replay", str(scenario), *options).accept(timeout_s=150)
