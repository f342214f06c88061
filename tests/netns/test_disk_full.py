"""A disk that is full while a run writes its records: a sentence, and all lines on it are whole."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_rig import Command, Write

from testbed.records.run_directory import read_events

BLOCK = 4096


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(BLOCK))
        except OSError as error:
            assert error.errno == errno.ENOSPC


# every day tests/unit/test_record_directory.py fills the disk below the same writer
@pytest.mark.parametrize("fabric", ["netns", pytest.param("sim", marks=pytest.mark.nightly)])
def test_a_run_ends_with_a_sentence_and_whole_lines(
    fabric: str, small_disk: Path, scenario: Write, nothing_left: set[str]
) -> None:
    path = scenario(steps=3000)
    run = Command(small_disk, "run", path, "--fabric", fabric, "--quiet")
    try:
        run.until(lambda: len(run.steps()) > 3, 200)
        fill(small_disk)
        code, out, err = run.finish(90)
    finally:
        run.process.kill()
    (directory,) = small_disk.glob("runs/*")
    assert (code, out) == (1, ""), err
    assert "No space left on device" in err and "What was recorded before is kept" in err
    assert "Traceback" not in err, err
    for file in (directory / "links.jsonl", *directory.glob("events/*.jsonl")):
        text = file.read_text()
        assert text.endswith("\n"), file
        assert all(json.loads(line) for line in text.splitlines())
    steps = [s["step"] for s in read_events(directory)["step"] if s["node"] == "worker-0"]
    assert steps == list(range(steps[0], steps[0] + len(steps))) and len(steps) < 3000
    assert not (directory / "summary.json").exists()
    assert not [file for file in directory.iterdir() if file.name.startswith(".")]
