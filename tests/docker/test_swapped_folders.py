"""Folders that their owner replaces while root's containers are made: nothing of what is there then is started, given or written to."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from standing import Standing, assert_gone, left_of

from testbed.errors import ExperimentError
from testbed.fabric.base import ExecEnvironment, RunContext, new_id
from testbed.fabric.docker.compose_file import RUN_LABEL, to_yaml
from testbed.fabric.docker.engine import Compose, clean
from testbed.fabric.docker.fabric import DockerFabric
from testbed.topology import NodeSpec
from testbed.user_files import OpenedPath, PinnedFolder

pytestmark = [pytest.mark.docker, pytest.mark.root]


def test_another_compose_file_is_not_what_compose_makes(image: str, tmp_path: Path) -> None:
    run = new_id()
    folder = tmp_path / "run"
    folder.mkdir()
    service = {"image": image, "network_mode": "none", "labels": {RUN_LABEL: run}}
    wanted = {"services": {"wanted": service | {"container_name": f"narrows-{run}-wanted"}}}
    hostile = {"services": {"hostile": service | {"container_name": f"narrows-{run}-hostile"}}}
    compose = Compose(run, "a-token")
    compose.write(to_yaml(wanted), PinnedFolder(folder))
    assert "wanted" in (folder / "compose.yaml").read_text()
    (folder / "compose.yaml").write_text(to_yaml(hostile))
    try:
        compose.create()
        assert left_of(run) == [f"narrows-{run}-wanted"]
    finally:
        removed = clean({"kind": "docker", "run": run})
    assert removed == [f"container narrows-{run}-wanted"]


@pytest.mark.parametrize("which", ["a folder", "data"])
def test_another_folder_is_refused_before_a_command_is_in_it(
    image: str, tmp_path: Path, which: str
) -> None:
    """The working folder; and one that an option names, even before containers are made."""
    folders = [tmp_path / name for name in ("a folder", "meeting", "secrets", "data")]
    for folder in folders:
        folder.mkdir()
    work, meeting, secrets, data = folders
    exec_environment = ExecEnvironment(work, meeting, user="61234:61234")
    read = (OpenedPath(data),)
    context = RunContext(
        new_id(), tmp_path / "run", "a-token", True, read, exec_environment=exec_environment
    )
    fabric = DockerFabric(context)

    def swap() -> None:
        (tmp_path / which).rename(tmp_path / "moved")
        (tmp_path / which).symlink_to(secrets)

    try:
        if which == "data":
            swap()
        fabric.create([NodeSpec("worker-0", "worker", "worker", 0, 0)])
        if which != "data":
            swap()
        with pytest.raises(ExperimentError, match="another folder than the run began with"):
            fabric.start()
    finally:
        fabric.destroy()
    assert_gone(context.id)


def test_logs_go_where_the_run_began_and_without_them_nothing_is_left_either(
    own: Standing, tmp_path: Path
) -> None:
    began, moved = own.fabric.context.directory, tmp_path / "moved"
    began.rename(moved)
    for folder in (began, moved):
        (folder / "log").mkdir(parents=True)
        (folder / "log" / "server.log").symlink_to(tmp_path / "outside")
    own.fabric.save_logs()
    assert not (tmp_path / "outside").exists()
    assert list((began / "log").iterdir()) == [began / "log" / "server.log"]
    assert not (moved / "log" / "server.log").is_symlink()
    said = subprocess.run(
        ["docker", "logs", f"narrows-{own.id}-server"], capture_output=True, check=True
    )
    assert (moved / "log" / "server.log").read_bytes() == said.stdout + said.stderr
    shutil.rmtree(moved / "log")
    (moved / "log").write_text("no folder")
    with pytest.raises(NotADirectoryError):
        own.fabric.destroy()
    assert left_of(own.id) == []
    (moved / "log").unlink()
