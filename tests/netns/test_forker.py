"""The process that nodes are forked from: its forks, their ends, and what they may not have."""

import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.errors import ExperimentError
from testbed.fabric import fork_server
from testbed.fabric.base import START_S
from testbed.fabric.file_view import NODE_USER, pinned, programs
from testbed.fabric.forker import Forked, Forker, ForkSetting, ahead, take
from testbed.links.network import namespaces
from testbed.process import environment

pytestmark = pytest.mark.root

SHORT_S = START_S
STRANGER = 61_234


@pytest.fixture
def forker() -> Iterator[Forker]:
    made = Forker(environment(), "testbed")
    yield made
    made.close()


@pytest.fixture
def netns() -> Iterator[str]:
    path = namespaces.make(f"nw-forker-{os.getpid()}")
    yield path
    namespaces.remove(Path(path).name)


def start(forker: Forker, netns: str, log: Path, *more: str, name: str = "worker-0") -> Forked:
    """A node that looks for a session that is not there."""
    with log.open("ab") as output:
        arguments = ["--name", name, "--control", "127.0.0.1:9", *more]
        variables = {"NARROWS_TOKEN": "secret"}
        return forker.node(ForkSetting(name, netns, programs({}), ""), arguments, variables, output)


def test_a_fork_is_in_its_namespace_without_privileges_and_bears_its_name(
    forker: Forker, netns: str, tmp_path: Path
) -> None:
    node = start(forker, netns, tmp_path / "log", name="a-worker-with-a-long-name")
    folder = Path(f"/proc/{node.pid}")
    give_up = time.monotonic() + SHORT_S
    while "CapBnd:\t0000000000000000" not in (status := (folder / "status").read_text()):
        assert time.monotonic() < give_up, status
        time.sleep(0.01)
    assert (folder / "ns/net").samefile(netns)
    for kind in ("CapEff", "CapPrm", "CapBnd", "CapAmb"):
        assert f"{kind}:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert (folder / "comm").read_text() == "a-worker-with-a\n"
    assert os.getsid(node.pid) == node.pid
    opened = {str(path.readlink()) for path in (folder / "fd").iterdir()}
    assert not [name for name in opened if name.startswith("anon_inode:[pidfd]")]
    assert str(tmp_path / "log") in opened


def test_an_end_is_told_with_its_status(forker: Forker, netns: str, tmp_path: Path) -> None:
    killed = start(forker, netns, tmp_path / "killed")
    refused = start(forker, netns, tmp_path / "refused", "--no-such-option")
    assert refused.wait(SHORT_S) == 2
    assert "--no-such-option" in (tmp_path / "refused").read_text()
    assert killed.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait(SHORT_S) == -signal.SIGKILL
    assert (killed.poll(), refused.poll()) == (-signal.SIGKILL, 2)


def test_a_node_that_cannot_enter_its_namespace_says_so(forker: Forker, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"could not be isolated.*nw-not-there"):
        start(forker, "/run/netns/nw-not-there", tmp_path / "log")


@pytest.mark.parametrize("writable", [True, False])
def test_a_folder_that_its_owner_replaces_is_not_shown(
    forker: Forker, netns: str, tmp_path: Path, writable: bool
) -> None:
    """Whoever owns the working folder puts a link to what only root may read or write in its place."""
    work, secrets = tmp_path / "work", tmp_path / "secrets"
    work.mkdir()
    os.chown(work, STRANGER, STRANGER)
    secrets.mkdir(mode=0o700)
    (secrets / "key").write_text("secret")
    shown = pinned(work, writable=writable)
    work.rename(tmp_path / "moved")
    work.symlink_to(secrets)
    with pytest.raises(ExperimentError, match="another folder than the run began with"):
        forker.room(ForkSetting("worker-0", netns, [*programs({}), shown], ""))
    (tmp_path / "work").unlink()
    (tmp_path / "moved").rename(work)
    room = forker.room(ForkSetting("worker-0", netns, [*programs({}), shown], ""))
    job = forker.command(
        room, ["stat", "-c", "%u", str(work)], {"PATH": "/usr/bin:/bin"}, Path("/")
    )
    assert job.stdout is not None and job.stdout.read() == f"{NODE_USER}\n".encode()
    job.stdout.close()


def run(forker: Forker, room: Forked, *words: str) -> Forked:
    """A command that prints nothing."""
    started = forker.command(room, words, {"PATH": "/usr/bin:/bin"}, Path("/"))
    assert started.stdout is not None
    started.stdout.close()
    return started


def test_a_command_whose_node_has_just_ended_is_refused_and_others_are_started(
    forker: Forker, netns: str
) -> None:
    setting = ForkSetting("worker-0", netns, programs({}), "")
    ended, other = forker.room(setting), forker.room(setting)
    os.kill(ended.pid, signal.SIGKILL)
    assert ended.wait(SHORT_S) == -signal.SIGKILL
    with pytest.raises(ExperimentError, match="its node has ended"):
        run(forker, ended, "true")
    assert run(forker, other, "sh", "-c", "exit 7").wait(SHORT_S) == 7


MANY = 1100
OPENING = f"""
import os, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for _ in range({MANY}):
    os.open(os.devnull, os.O_RDONLY)
"""


def test_processes_are_started_whose_descriptors_select_would_not_take(
    netns: str, tmp_path: Path
) -> None:
    """As where there are a thousand nodes: here both processes open as many files first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * MANY:
        pytest.skip(f"this machine allows {hard} open files")
    (tmp_path / "sitecustomize.py").write_text(OPENING)
    variables = environment()
    variables.pop("NARROWS_OPEN_FILES", None)  # a limit that others would go back to
    variables["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{variables['PYTHONPATH']}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    own = [os.open(os.devnull, os.O_RDONLY) for _ in range(MANY)]
    made = Forker(variables, "testbed")
    try:
        room = made.room(ForkSetting("worker-0", netns, programs({}), ""))
        assert len(list(Path(f"/proc/{made.pid}/fd").iterdir())) > MANY
        assert run(made, room, "sh", "-c", "exit 7").wait(SHORT_S) == 7
        assert room.poll() is None
    finally:
        made.close()
        for descriptor in own:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_is_stopped_before_it_begins_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As others of its node may do, which have the same user."""
    monkeypatch.setattr(fork_server, "BEGIN_S", 0.3)
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading), pytest.raises(TimeoutError, match=r"did not begin within 0\.3 s"):
        fork_server._failure(reading, pid)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_nodes_end_with_the_process_that_they_are_forks_of(
    forker: Forker, netns: str, tmp_path: Path, how: str
) -> None:
    nodes = [start(forker, netns, tmp_path / str(number)) for number in range(2)]
    if how == "closed":
        forker.close()
    else:
        os.kill(forker.pid, signal.SIGKILL)
        assert [node.wait(SHORT_S) for node in nodes] == [-signal.SIGKILL] * 2
        with pytest.raises(ExperimentError, match="ended with status -9"):
            start(forker, netns, tmp_path / "late")
    give_up = time.monotonic() + SHORT_S
    while any(running(node.pid) for node in nodes):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_it_ends_without_a_word_with_what_nobody_has_read(
    netns: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = Forker(environment(), "testbed")
    node = start(made, netns, tmp_path / "log")
    os.kill(node.pid, signal.SIGKILL)
    give_up = time.monotonic() + SHORT_S
    while Path(f"/proc/{node.pid}").exists():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    time.sleep(0.1)  # until it has said so
    made.close()
    assert capfd.readouterr().err == ""


def test_one_that_was_begun_ahead_is_taken_once_and_otherwise_ends() -> None:
    with ahead(True):
        taken = take()
        assert taken is not None and take() is None
    try:
        assert running(taken.pid)
    finally:
        taken.close()
    with ahead(True):
        (unused,) = children("testbed.fabric.fork_server")
    assert not running(unused)
    with ahead(False):
        assert take() is None and not children("testbed.fabric.fork_server")


def test_a_node_has_the_variables_it_was_started_with(forker: Forker, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, (tmp_path / "log").open("ab") as output:
        control = f"127.0.0.1:{server.getsockname()[1]}"
        node = forker.node(
            ForkSetting("worker-0", "/proc/self/ns/net", programs({}), ""),
            ["--name", "worker-0", "--control", control], {"NARROWS_TOKEN": "ours"}, output,
        )  # fmt: skip
        server.settimeout(SHORT_S)
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as lines:
            said = json.loads(lines.readline())
    assert (said["type"], said["node"], said["token"]) == ("hello", "worker-0", "ours")
    assert node.poll() is None


def test_a_program_that_cannot_be_imported_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "testbed"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    made = Forker({**os.environ, "PYTHONPATH": str(tmp_path)}, "testbed")
    try:
        with pytest.raises(ExperimentError, match="ended with status 7"):
            start(made, "/proc/self/ns/net", tmp_path / "log")
    finally:
        made.close()


def children(module: str) -> list[int]:
    """Processes that this one has started to run a module."""
    own = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
    return [int(pid) for pid in own if module in command(int(pid))]


def command(pid: int) -> str:
    """A process's command line, which is empty for an instant when its program has just been started."""
    give_up = time.monotonic() + SHORT_S
    while not (line := Path(f"/proc/{pid}/cmdline").read_text()) and running(pid):
        assert time.monotonic() < give_up
        time.sleep(0.001)
    return line


def running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_what_a_user_may_not_enter_is_no_place_of_programs(tmp_path: Path) -> None:
    """Whoever becomes another user may keep a ``PATH`` with folders of the first."""
    tmp_path.chmod(0o700)
    (tmp_path / "bin").mkdir()
    path = {"PATH": f"{tmp_path / 'bin'}:{tmp_path / 'nowhere'}", "PYTHONPATH": str(tmp_path)}
    assert {str(tmp_path), str(tmp_path / "bin")} <= {one.path for one in programs(path)}
    os.seteuid(NODE_USER)
    try:
        found = {one.path for one in programs(path)}
    finally:
        os.seteuid(0)
    assert str(tmp_path / "bin") not in found
