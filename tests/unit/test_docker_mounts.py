"""Which folders containers of root's are to have: those that are there when a run begins, through no link."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.fabric.docker.fabric import pins_below, wanted


def identity(path: Path) -> tuple[int, int]:
    return path.stat().st_dev, path.stat().st_ino


def test_pins_are_of_the_working_directory_whatever_has_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    for folder in (work, other):
        (folder / "runs" / "x").mkdir(parents=True)
    monkeypatch.chdir(work)
    ours = {work: identity(work), work / "runs": identity(work / "runs")}
    assert pins_below(work, work / "runs" / "x") == ours
    assert pins_below(work, other) == {work: identity(work)}
    work.rename(tmp_path / "moved")
    work.symlink_to(other)
    assert pins_below(work, work / "runs" / "x") == ours
    volumes = [{"source": str(path)} for path in (work, work / "runs", other)]
    assert wanted({"volumes": volumes}, ours) == dict.fromkeys([*ours.values(), identity(other)], 1)
    (tmp_path / "moved" / "runs").rename(tmp_path / "moved" / "old")
    (tmp_path / "moved" / "runs").symlink_to(other / "runs")
    assert identity(other / "runs") not in pins_below(work, work / "runs" / "x").values()
