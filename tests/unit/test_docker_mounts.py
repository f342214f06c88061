"""Which folders containers of root's are to have: those that are there when a run begins, through no link."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.errors import MachineError
from testbed.fabric.docker import fabric as docker_fabric
from testbed.fabric.docker.compose_file import container_name
from testbed.fabric.docker.engine import Objects
from testbed.fabric.docker.fabric import DockerFabric, pins_below, wanted


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


def test_what_was_paused_and_nothing_else_goes_on_and_once() -> None:
    paused: list[str] = []
    resumed: list[str] = []
    objects: Any = object.__new__(Objects)
    objects.run, objects._paused = "a-run", set()
    objects.client = SimpleNamespace(
        api=SimpleNamespace(pause=paused.append, unpause=resumed.append)
    )
    objects.resume("worker-0")
    objects.pause("worker-0")
    objects.pause("worker-1")
    for name in ("worker-0", "worker-0", "server"):
        objects.resume(name)
    assert paused == [container_name("a-run", f"worker-{rank}") for rank in (0, 1)]
    assert resumed == [container_name("a-run", "worker-0")]


def test_of_an_attempt_whose_subnet_was_taken_everything_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[object] = []
    taken = 2

    def create() -> None:
        nonlocal taken
        done.append("create")
        taken -= 1
        if taken >= 0:
            raise docker_fabric.SubnetTaken("taken")

    for name in ("load_templates", "render", "to_yaml"):
        monkeypatch.setattr(docker_fabric, name, lambda *_: {})
    for name in ("routed", "subnets_in_use"):
        monkeypatch.setattr(docker_fabric, name, lambda *_: [])
    monkeypatch.setattr(docker_fabric, "free_subnets", lambda *_, start: (start, start))
    made: Any = object.__new__(DockerFabric)
    made.context, made.folder = SimpleNamespace(id="a-run"), "folder"
    made.objects = SimpleNamespace(client=None, remove=lambda: done.append("remove"))
    made.compose = SimpleNamespace(write=lambda *_: None, create=create)
    made._plan, made._wanted = lambda _, *subnets: subnets, lambda _: {}
    first, *_ = made._make([])
    assert done == ["create", "remove", "create", "remove", "create"]
    done.clear()
    taken = 0
    assert made._make([])[0] == first - 2
    taken = 10**6
    with pytest.raises(MachineError, match="every subnet was taken"):
        made._make([])
    assert done.count("remove") == done.count("create") - 1
