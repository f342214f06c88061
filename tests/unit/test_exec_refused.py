"""What ``testbed exec`` refuses before anything is started."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from testbed.cli import main
from testbed.comm_trace.trace import MessageTrace
from testbed.errors import InputError, MachineError
from testbed.fabric.base import ExecEnvironment
from testbed.runner.comm_replay import CommReplay
from testbed.runner.exec import run as exec_run
from testbed.runner.exec.launch_spec import LaunchSpec
from testbed.scenario.load import load

SCENARIO = """
name: some-job
nodes:
  worker: {{role: worker, count: 2{more}}}
  guest: {{role: host, count: 2}}
links: {{default: {{up: {{rate: 40 Mbit/s, queue: 50 ms}}, down: {{rate: 40 Mbit/s, queue: 50 ms}}}}}}
traffic: [{traffic}]
events: [{events}]
"""


def refused(
    folder: Path, *options: str, more: str = "", traffic: str = "", events: str = ""
) -> int:
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO.format(more=more, traffic=traffic, events=events))
    with pytest.raises(SystemExit) as left:
        main(["exec", str(path), "--out", str(folder), *options, "--", "true"])
    assert not (folder / "runs").exists()
    return int(str(left.value.code))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fabric", "sim"], "in virtual time there are none"),
        (["--name", "a/b"], "'a/b' cannot be part of a directory's name"),
        (["--env", "NAME"], "Write NAME=VALUE"),
    ],
)
def test_options_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert refused(tmp_path, *options) == 2
    assert said in capsys.readouterr().err


def test_an_image_is_for_containers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(tmp_path, more=", image: somebody/training") == 2
    assert "Use --fabric docker" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["home", "/"])
def test_containers_may_not_write_to_everything(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home if where == "home" else "/")
    assert refused(tmp_path, "--fabric", "docker") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"which would be all of {Path.cwd()}. Start it in a folder of its own" in said


def test_no_command_is_told_to_be_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = "{kind: absent, nodes: [worker-1], at: 5 s, for: 10 s}"
    assert refused(tmp_path, events=away) == 2
    assert (
        "events.0: only `testbed run` and `compare` tell nodes to be absent"
        in capsys.readouterr().err
    )
    scenario = load(tmp_path / "scenario.yaml", trains=False)
    with pytest.raises(InputError, match="Leave it out"):
        CommReplay(scenario, MessageTrace({}))


def test_a_command_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["exec", str(tmp_path / "scenario.yaml")])
    assert left.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_nodes_with_a_command_make_no_traffic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = "{name: noise, from: guest-0, to: worker-1, kind: tcp}"
    assert refused(tmp_path, traffic=flow) == 2
    assert "'noise': worker-1 runs the command" in capsys.readouterr().err


def test_a_job_that_could_not_begin_leaves_no_empty_folder_for_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(*_: object, exec_environment: ExecEnvironment, **__: object) -> None:
        assert exec_environment.output is not None and Path(exec_environment.output).is_dir()
        raise MachineError("no nodes today", fix="Wait")

    monkeypatch.setattr(exec_run, "check", lambda *_, **__: 1)
    monkeypatch.setattr(exec_run, "machine", lambda _: nullcontext())
    monkeypatch.setattr(exec_run, "Session", session)
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO.format(more="", traffic="", events=""))
    with pytest.raises(MachineError, match="no nodes today"):
        exec_run.execute(
            load(path, trains=False),
            LaunchSpec(("true",)),
            "netns",
            tmp_path,
            shown=False,
            quiet=True,
        )
    (directory,) = (tmp_path / "runs").iterdir()
    assert not (directory / "output").exists()
