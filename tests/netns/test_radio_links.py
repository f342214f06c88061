"""Rates of radio links, outages among them, replayed on real links: nothing but the processors may make that invalid."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_rig import Command
from radio_links import write

pytestmark = [pytest.mark.judged, pytest.mark.timed, pytest.mark.timeout(280)]


@pytest.mark.parametrize(
    ("workers", "seconds", "seed"),
    [
        (2, 9, 1),
        *(pytest.param(4, 60, seed, marks=pytest.mark.nightly) for seed in (2, 3, 4)),
    ],
)
def test_a_replay_is_what_was_asked(
    workers: int, seconds: int, seed: int, tmp_path: Path, nothing_left: set[str]
) -> None:
    scenario = write(tmp_path, workers=workers, seconds=seconds, seed=seed)
    command = Command(tmp_path, "replay", str(scenario), "--seconds", str(seconds), "--quiet")
    command.accept(timeout_s=seconds + 60)
