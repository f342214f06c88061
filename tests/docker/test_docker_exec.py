"""``testbed exec --fabric docker``: in our image and in somebody's own, and an end on demand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_rig import Command, executed

from testbed.record.directory import read_events
from testbed.setup import images

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("image", "nothing_left"),
]
SCENARIO = """
name: in-containers
nodes: {{worker: {{role: worker, count: 2{own}}}}}
links:
  default: {{up: {{rate: 40 Mbit/s, queue: 50 ms}}, down: {{rate: 40 Mbit/s, queue: 50 ms}}}}
events: [{events}]
congestion: cubic
"""
OWN = "narrows-test/own:exec"


@pytest.fixture
def own_image() -> Iterator[str]:
    """An image with nothing of ours in it but its name; it runs as another user, and has a program to run."""
    recipe = f'FROM {images.tags().base}\nENV SOMEBODY=else\nUSER 1234\nENTRYPOINT ["/bin/false"]\n'
    build = ["docker", "build", "--quiet", "--tag", OWN, "-"]
    subprocess.run(build, input=recipe.encode(), check=True, capture_output=True)
    yield OWN
    subprocess.run(["docker", "rmi", OWN], check=True, capture_output=True)


def start(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *arguments: str,
    own: str = "",
    events: str = "",
) -> Command:
    image = f", image: {own!r}" if own else ""
    (folder / "scenario.yaml").write_text(SCENARIO.format(own=image, events=events))
    monkeypatch.chdir(folder)
    return Command(folder, "exec", "scenario.yaml", "--fabric", "docker", *arguments)


def test_a_script_of_ones_own_in_our_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.py").write_text(
        "import torch, torch.distributed as dist\n"
        "from testbed import mark\n"
        "dist.init_process_group('gloo')\n"
        "values = torch.ones(3)\n"
        "dist.all_reduce(values)\n"
        "mark.step()\n"
        "open(f'rank-{dist.get_rank()}', 'w').write(str(values.sum().item()))\n"
        "dist.destroy_process_group()\n"
    )
    code, _, err = start(tmp_path, monkeypatch, "--", "python", "job.py").finish(150.0)
    assert executed(code, err), err
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)] == ["6.0", "6.0"]
    assert (tmp_path / "rank-1").stat().st_uid == os.getuid()
    (run,) = (tmp_path / "runs").iterdir()
    events = read_events(run)
    assert [mark["what"] for mark in events["mark"]] == ["step", "step"]
    assert [record["status"] for record in events["process"]] == [0, 0]
    assert json.loads((run / "summary.json").read_text())["measures"]["changes"]["state"] == "valid"


def test_an_image_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_image: str
) -> None:
    script = "import os; print(os.environ['SOMEBODY'], os.environ['NARROWS_NODE'], os.getcwd())"
    command = start(tmp_path, monkeypatch, "--", "python3", "-c", script, own=own_image)
    code, out, err = command.finish(90.0)
    assert executed(code, err), err
    assert sorted(out.splitlines()) == [
        f"worker-{rank} | else worker-{rank} {tmp_path}" for rank in range(2)
    ]


def test_an_interrupted_job_ends_with_its_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "trap 'echo asked; exit 0' TERM; echo begun; sleep 300 & wait"
    command = start(tmp_path, monkeypatch, "--", "sh", "-c", script)
    command.until(lambda: len(list(tmp_path.glob("runs/*/log/worker-*.log"))) == 2, 90.0)
    command.process.send_signal(signal.SIGINT)
    code, out, err = command.finish(60.0)
    assert code == 1 and "interrupted by SIGINT" in err
    assert out.count("asked") == 2


def test_a_paused_container_is_asked_to_end_as_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container that stands still nobody would hear of it before the pause is over."""
    script = "trap 'echo asked; exit 0' TERM; echo begun; sleep 300 & wait"
    away = "{kind: pause, nodes: [worker-0], at: 3 s, for: 9 s}"
    options = ("--seconds", "5", "--", "sh", "-c", script)
    code, out, err = start(tmp_path, monkeypatch, *options, events=away).finish(90.0)
    assert executed(code, err), err
    assert out.count("asked") == 2
    (run,) = (tmp_path / "runs").iterdir()
    assert max(record["ended_s"] for record in read_events(run)["process"]) < 10


def test_the_tokens_of_a_run_are_not_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = start(tmp_path, monkeypatch, "--", "env").finish(90.0)
    assert executed(code, err), err
    assert "NARROWS_TOKEN" not in out and "worker-1 | RANK=1" in out
