"""``testbed exec --fabric docker``: in our image and in somebody's own, over which network, and an end on demand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_rig import Command
from rights_rig import RunningCommand, assert_documented, run_in
from standing import assert_gone
from verdict_rig import accepted_run

from testbed.host import images
from testbed.records.run_directory import read_events

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("image"),
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
OWNER = os.getuid() or 4711
"""Of the folders that jobs write to: nobody is root in a container."""
BYTES = 1_000_000
TALK = """
import fcntl, os, socket, struct, time
from pathlib import Path
ready = Path("ready")
def address(name):
    with socket.socket() as any_socket:
        return socket.inet_ntoa(fcntl.ioctl(any_socket, 0x8915, struct.pack("256s", name.encode()))[20:24])
def talk(network):
    if os.environ["RANK"] == "0":
        others = {"lo", os.environ["NARROWS_INTERFACE"]}
        (control,) = {name for _, name in socket.if_nameindex()} - others
        chosen = address(control) if network == "control" else os.environ["NARROWS_ADDRESS"]
        with socket.create_server((chosen, 4321)) as listener:
            Path("new").write_text(chosen)
            Path("new").rename(ready)
            taken, _ = listener.accept()
            with taken:
                while taken.recv(1 << 16):
                    pass
    else:
        while not ready.exists():
            time.sleep(0.05)
        with socket.create_connection((ready.read_text(), 4321)) as sender:
            sender.sendall(bytes(1_000_000))
"""
IN_OURS = """
import os, torch, torch.distributed as dist
from testbed import mark
from talk import talk
print(*(f"{name}={value}" for name, value in os.environ.items()), sep="\\n")
dist.init_process_group("gloo")
values = torch.ones(3)
dist.all_reduce(values)
mark.step()
open(f"rank-{dist.get_rank()}", "w").write(str(values.sum().item()))
dist.destroy_process_group()
talk("data")
"""
IN_OWN = """
import os
from talk import talk
print(os.environ["SOMEBODY"], os.environ["NARROWS_NODE"], os.getcwd())
talk("control")
"""


@dataclass
class Job:
    """One that has ended, and what it left."""

    folder: Path
    code: int
    output: str
    run: Path

    @property
    def events(self) -> dict[str, list[dict[str, Any]]]:
        return read_events(self.run)

    def found(self, name: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.run / name).read_text())
        return read


def start(folder: Path, *arguments: str, own: str = "", events: str = "") -> Command:
    image = f", image: {own!r}" if own else ""
    (folder / "scenario.yaml").write_text(SCENARIO.format(own=image, events=events))
    folder.chmod(0o755)
    with chdir(folder):
        return Command(folder, "exec", "scenario.yaml", "--fabric", "docker", *arguments)


def performed(folder: Path, script: str, own: str = "") -> Job:
    if os.getuid() == 0:
        os.chown(folder, OWNER, OWNER)
    (folder / "talk.py").write_text(TALK)
    (folder / "job.py").write_text(script)
    command = start(folder, "--", "python3", "job.py", own=own)
    code, out, err = command.finish(200.0)
    assert_gone(run_in(folder))
    (run,) = command.runs()
    job = Job(folder, code, out, run)
    assert [record["status"] for record in job.events["process"]] == [0, 0], err + out
    return job


@pytest.fixture(scope="module")
def in_ours(image: str, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """What ran in our image, and talked over its links."""
    return performed(tmp_path_factory.mktemp("ours"), IN_OURS)


@pytest.fixture(scope="module")
def in_own(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """In an image with nothing of ours but its name, which runs as another user and has a program to run; and over the
    unshaped network."""
    recipe = f'FROM {images.tags().base}\nENV SOMEBODY=else\nUSER 1234\nENTRYPOINT ["/bin/false"]\n'
    build = ["docker", "build", "--quiet", "--tag", OWN, "-"]
    subprocess.run(build, input=recipe.encode(), check=True, capture_output=True)
    yield performed(tmp_path_factory.mktemp("own"), IN_OWN, OWN)
    subprocess.run(["docker", "rmi", OWN], check=True, capture_output=True)


@pytest.mark.judged
def test_a_script_of_ones_own_in_our_image(in_ours: Job) -> None:
    accepted_run(in_ours.run, in_ours.code)
    ranks = [in_ours.folder / f"rank-{rank}" for rank in range(2)]
    assert [path.read_text() for path in ranks] == ["6.0", "6.0"]
    assert ranks[1].stat().st_uid == OWNER
    assert [mark["what"] for mark in in_ours.events["mark"]] == ["step", "step"]
    assert in_ours.found("summary.json")["measures"]["changes"]["state"] == "valid"


@pytest.mark.judged
def test_the_tokens_of_a_run_are_not_the_jobs(in_ours: Job) -> None:
    assert "NARROWS_TOKEN" not in in_ours.output and "worker-1 | RANK=1" in in_ours.output


@pytest.mark.judged
def test_an_image_of_ones_own(in_own: Job) -> None:
    assert sorted(in_own.output.splitlines()) == [
        f"worker-{rank} | else worker-{rank} {in_own.folder}" for rank in range(2)
    ]


@pytest.mark.parametrize(("job", "network"), [("in_ours", "data"), ("in_own", "control")])
@pytest.mark.judged
def test_the_network_that_bytes_took(
    request: pytest.FixtureRequest, job: str, network: str
) -> None:
    done: Job = request.getfixturevalue(job)
    (large,) = [one for one in done.events["socket"] if one["bytes_sent"] >= BYTES]
    way = large["node"], large["peer_node"], large["interface"]
    assert way == ("worker-1", "worker-0", network)
    assert large["bytes_sent"] - large["bytes_retransmitted"] == BYTES and large["ended_s"]
    certificate = done.found("certificate.json")
    said = [reason for reason in certificate["reasons"] if "control network" in reason]
    assert len(said) == (network == "control")
    assert all("$NARROWS_INTERFACE" in one and "of worker-0" in one for one in said)
    measures = certificate["measures"]
    assert measures["around"]["state"] == ("invalid" if said else "valid")
    if network == "data":
        assert measures["byte_identity"]["state"] == "valid"
    assert done.code == (1 if said or certificate["verdict"] == "invalid" else 0)


def begun(folder: Path) -> bool:
    """Whether both nodes' commands have said so."""
    logs = [path.read_text() for path in folder.glob("runs/*/log/worker-*.log")]
    return len(logs) == 2 and all("begun" in log for log in logs)


TRAP = "trap 'echo asked; exit 0' TERM; echo begun; sleep 300 & wait"


def test_an_interrupted_job_ends_with_its_containers(tmp_path: Path, nothing_left: None) -> None:
    """Until then its processes have the rights that are documented; of others' processes root alone may read them."""
    is_root = os.getuid() == 0
    if is_root:
        os.chown(tmp_path, OWNER, OWNER)
    command = start(tmp_path, "--", "sh", "-c", TRAP)
    command.until(lambda: begun(tmp_path), 200.0)
    users = {"0": "root", str(OWNER): "the folder's owner"}
    running = RunningCommand(command.process.pid, run_in(tmp_path), "exec", tmp_path, users)
    rows = running.rows() if is_root else []
    command.process.send_signal(signal.SIGINT)
    code, out, err = command.finish(120.0)
    assert code == 1 and "interrupted by SIGINT" in err
    assert out.count("asked") == 2
    if is_root:
        assert_documented(rows, "root", "exec")


@pytest.mark.judged
def test_a_paused_container_is_asked_to_end_as_others_are(
    tmp_path: Path, nothing_left: None
) -> None:
    """In a container that stands still nobody would hear of it before the pause is over."""
    away = "{kind: pause, nodes: [worker-0], at: 2 s, for: 9 s}"
    command = start(tmp_path, "--seconds", "3", "--", "sh", "-c", TRAP, events=away)
    out, err = command.accept(120.0)
    assert out.count("asked") == 2, err
    (run,) = command.runs()
    assert max(record["ended_s"] for record in read_events(run)["process"]) < 10
