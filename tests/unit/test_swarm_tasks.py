"""The first process of a task on a swarm: it stops, kills and starts its node, or keeps commands for the controller."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from io import BytesIO
from pathlib import Path

import pytest

from testbed.errors import ExperimentError
from testbed.fabric.docker.container_init import CommandKeeper
from testbed.fabric.swarm.fabric import OUTPUT_BYTES, UNPACK_S, CommandChannel, RemoteProcess
from testbed.process import within
from testbed.runner.exec.mark_listener import MarkListener
from testbed.user_files import PinnedFolder, archive_of


def test_the_first_process_of_a_task_stops_kills_and_starts_its_node(tmp_path: Path) -> None:
    """And all that the node has started with it."""
    name = f"\0narrows-test-{os.getpid()}"
    with first_process(name, NODE) as first:
        assert first.stdout is not None
        started = [*map(int, first.stdout.readline().split())]
        assert request(name, "pause") == "pause"
        assert within(20, 0.01, lambda: all(state(pid) == "T" for pid in started))
        assert request(name, "resume") == "resume"
        assert within(20, 0.01, lambda: all(state(pid) != "T" for pid in started))
        assert request(name, "pause") + request(name, "kill") == "pausekill"
        assert not Path(f"/proc/{started[0]}").exists()
        assert within(20, 0.01, lambda: all(state(pid) in "Z-" for pid in started))
        assert request(name, "pause") == "pause"  # of nothing
        assert request(name, "restart") == "restart"
        assert int(first.stdout.readline().split()[0]) not in started
        assert request(name, "dance") == ""
        os.kill(first.pid, signal.SIGTERM)
        assert first.wait(20) == 0


@pytest.mark.parametrize(
    ("node", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_first_process_of_a_task_ends_as_its_node_does(node: str, code: int) -> None:
    with first_process(f"\0narrows-test-{os.getpid()}", node) as first:
        assert first.wait(20) == code


FIRST = """
import socket, sys
from testbed.fabric.docker import container_init
container_init.module_command = lambda *_: [sys.executable, "-c", sys.argv[2]]
sys.exit(container_init.Keeper([]).serve(socket.socket(fileno=int(sys.argv[1]))))
"""
"""With another program as its node: ours needs a session."""
NODE = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "300"])
print(os.getpid(), child.pid, flush=True)
time.sleep(300)
"""


@contextmanager
def first_process(name: str, node: str) -> Iterator[subprocess.Popen[str]]:
    """One that listens for requests at ``name`` and keeps the Python program ``node``."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        first = subprocess.Popen(
            [sys.executable, "-c", FIRST, str(listening.fileno()), node],
            pass_fds=(listening.fileno(),),
            stdout=subprocess.PIPE,
            text=True,
        )
    try:
        yield first
    finally:
        first.terminate()
        assert first.stdout is not None
        first.stdout.close()
        first.wait(20)


def request(name: str, action: str) -> str:
    return handed(name, action)


def handed(name: str, action: str, *given: int) -> str:
    """The answer to a request with which descriptors go."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(20)
        connected.connect(name)
        socket.send_fds(connected, [action.encode()], given)
        return connected.recv(64).decode()


def state(pid: int) -> str:
    """The letter that the kernel shows; - of a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "-"


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[CommandChannel]:
    """A connection to the first process of a world of processes, as in a task."""
    name = f"\0narrows-test-{os.getpid()}"
    with first_of_commands(name, tmp_path, 900) as first:
        ours, other = socket.socketpair()
        with other:
            assert handed(name, "attach", other.fileno()) == "attach"
        made = CommandChannel(ours)
        yield made
        made.close()
        assert first.wait(20) == 0  # it ends with its connection


@contextmanager
def first_of_commands(name: str, folder: Path, attach_s: int) -> Iterator[subprocess.Popen[bytes]]:
    """One that listens for requests at ``name``; it ends with 0 if it waits for nobody then."""
    for part in ("job", "output"):
        (folder / part).mkdir()
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        listens = str(listening.fileno())
        first = subprocess.Popen(
            ["unshare", *rights, "--pid", "--fork", "--kill-child", sys.executable, "-c", FIRST_OF_COMMANDS,
             str(folder / "job"), str(folder / "marks"), str(folder / "output"), listens, str(attach_s)],
            pass_fds=(listening.fileno(),),
        )  # fmt: skip
    try:
        yield first
    finally:
        first.kill()
        first.wait()


FIRST_OF_COMMANDS = """
import signal, socket, sys
from testbed.fabric.docker import container_init
container_init.MARKS_PATH, container_init.OUTPUT_PATH = sys.argv[2:4]
keeper = container_init.CommandKeeper(sys.argv[1], int(sys.argv[5]))
sys.exit(keeper.serve(socket.socket(fileno=int(sys.argv[4]))) or signal.alarm(0))
"""


def test_a_task_to_which_no_controller_attaches_ends(tmp_path: Path) -> None:
    with first_of_commands(f"\0narrows-test-{os.getpid()}", tmp_path, 1) as first:
        assert first.wait(60) == 0


def ran(process: RemoteProcess) -> tuple[bytes, int]:
    """What a command printed, and its status."""
    assert process.stdout is not None
    with process.stdout as printed:
        return printed.read(), process.wait(20)


def test_the_first_process_of_a_task_starts_commands_and_tells_of_them(
    commands: CommandChannel, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "word.txt").write_text("narrow")
    with chdir(tmp_path / "here"):
        files = archive_of(PinnedFolder(tmp_path / "here"), lambda _: True)
    commands.unpack("worker-0", files)
    given = {"NARROWS_MARKS": "", "RANK": "3"}

    def run(text: str) -> tuple[bytes, int]:
        return ran(commands.launch(["sh", "-c", text], given))

    assert run("cat word.txt; echo $RANK >&2; exit 5") == (b"narrow3\n", 5)
    assert run("head -c 3000000 /dev/zero; kill -9 $$") == (bytes(3_000_000), -9)
    said, status = ran(commands.launch(["no-such-program"], given))
    assert (b"no-such-program: No such file" in said, status) == (True, 127)
    assert ran(commands.launch(["./word.txt"], given))[1] == 126
    left = commands.launch(["sh", "-c", "sleep 300 & echo begun; wait"], given)
    assert left.stdout is not None
    assert left.stdout.readline() == b"begun\n"
    with pytest.raises(subprocess.TimeoutExpired):
        left.wait(0.01)
    commands.signal(signal.SIGTERM)
    assert ran(left) == (b"", -signal.SIGTERM)
    kept = commands.kept()
    assert kept
    assert not any(kept)


def test_commands_gain_no_privileges(commands: CommandChannel) -> None:
    said, status = ran(commands.launch(["cat", "/proc/self/status"], {"NARROWS_MARKS": ""}))
    assert (b"\nNoNewPrivs:\t1\n" in said, status) == (True, 0)


def test_descriptors_that_come_with_requests_are_closed(commands: CommandChannel) -> None:
    for action in ("attach", "dance", "kill"):
        reading, writing = os.pipe()
        handed(f"\0narrows-test-{os.getpid()}", action, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            assert select.select([pipe], [], [], 20)[0], action
            assert pipe.read() == b""


def test_commands_are_paused_and_killed_by_the_agent_of_their_host(
    commands: CommandChannel,
) -> None:
    name, sleep = f"\0narrows-test-{os.getpid()}", ["sleep", f"300.{os.getpid()}"]
    process = commands.launch(sleep, {"NARROWS_MARKS": ""})
    give_up = time.monotonic() + 20
    while not (found := [pid for pid in map(int, pids()) if command_line(pid) == sleep]):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert request(name, "pause") == "pause"
    assert state(found[0]) == "T"
    assert request(name, "resume") == "resume"
    assert state(found[0]) != "T"
    assert request(name, "restart") == ""  # a command is not started twice
    assert request(name, "pause") + request(name, "kill") == "pausekill"
    assert ran(process) == (b"", -signal.SIGKILL)
    assert ran(commands.launch(["true"], {"NARROWS_MARKS": ""})) == (b"", 0)


def pids() -> list[str]:
    return [entry.name for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def command_line(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    return []


def test_what_is_to_be_kept_comes_back(commands: CommandChannel, tmp_path: Path) -> None:
    assert ran(commands.launch(["mkdir", "-p", "../output/a"], {"NARROWS_MARKS": ""}))[1] == 0
    (tmp_path / "output" / "a" / "weights").write_bytes(b"1234")
    with tarfile.open(fileobj=BytesIO(commands.kept())) as kept:
        assert kept.getnames() == ["a", "a/weights"]
    again = commands.kept()
    assert again
    assert not any(again)


def test_nothing_writes_what_is_kept_any_more(commands: CommandChannel) -> None:
    sleep = ["sleep", f"300.{os.getpid()}"]
    text = f"{' '.join(sleep)} > /dev/null 2>&1 & echo $!"
    assert ran(commands.launch(["sh", "-c", text], {"NARROWS_MARKS": ""}))[1] == 0
    assert within(20, 0.01, lambda: sleep in map(command_line, map(int, pids())))
    ours = commands.launch(["sleep", "300"], {"NARROWS_MARKS": ""})
    assert commands.kept()
    assert ours.returncode == -signal.SIGKILL  # known before anything was read
    assert ran(ours) == (b"", -signal.SIGKILL)
    assert sleep not in [command_line(int(pid)) for pid in pids()]


LARGE = f"truncate -s {OUTPUT_BYTES + 1} large"
DEEP = "for n in $(seq 1500); do mkdir d && cd d || exit; done"


@pytest.mark.parametrize("text", [LARGE, DEEP], ids=["too large", "folders in folders"])
def test_what_cannot_be_kept_is_not(commands: CommandChannel, tmp_path: Path, text: str) -> None:
    """And the next answer says what is there."""

    def run(text: str) -> int:
        command = ["sh", "-c", f"cd ../output; {text}"]
        return ran(commands.launch(command, {"NARROWS_MARKS": ""}))[1]

    assert run(text) == 0
    begun_s = time.monotonic()
    kept, took_s = commands.kept(), time.monotonic() - begun_s
    subprocess.run(["rm", "-rf", *(tmp_path / "output").iterdir()], check=True)
    assert kept == b""
    assert took_s < UNPACK_S  # an answer
    assert run("echo 7 > small") == 0
    with tarfile.open(fileobj=BytesIO(commands.kept())) as archive:
        assert archive.getnames() == ["small"]


def test_marks_come_to_the_listener_and_its_answer_is_of_the_nodes_clock(
    commands: CommandChannel,
) -> None:
    listener = MarkListener(["worker-0"])
    try:
        script = "from testbed import mark; mark.begin(); mark.step(loss=2.0); print('over')"
        process = commands.launch(
            [sys.executable, "-c", script],
            {"NARROWS_MARKS": listener.path("worker-0"), "RANK": "4"},
        )
        give_up = time.monotonic() + 60
        while listener.waiting != {4}:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        # a clock that is behind by a day: else it would wait for so long
        t0_ns, day_ns = time.monotonic_ns() + 86_400 * 10**9, 86_400 * 10**9
        listener.release(t0_ns, lambda node: -day_ns if node == "worker-0" else 0)
        assert ran(process) == (b"over\n", 0)
        heard = [listener.heard.get(timeout=20) for _ in range(2)]
        assert [(each.node, each.rank, each.mark.what) for each in heard] == [
            ("worker-0", 4, "begin"),
            ("worker-0", 4, "step"),
        ]
        assert heard[1].mark.values == {"loss": 2.0}
    finally:
        listener.close()


MARKS = """
import os, socket
for _ in range(50):
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(os.environ["NARROWS_MARKS"])
        try:
            connected.send(b"x")
            connected.recv(1)
        except ConnectionError:
            pass
"""


def test_a_listener_of_marks_that_is_not_there_ends_no_command(
    commands: CommandChannel, tmp_path: Path
) -> None:
    marks = {"NARROWS_MARKS": str(tmp_path / "nobody")}
    assert ran(commands.launch([sys.executable, "-c", MARKS], marks)) == (b"", 0)
    assert ran(commands.launch(["echo", "over"], marks)) == (b"over\n", 0)


def test_connections_that_the_listener_of_marks_has_closed_are_forgotten(
    commands: CommandChannel, tmp_path: Path
) -> None:
    path = str(tmp_path / "listener")

    def close_all() -> None:
        for _ in range(50):
            listening.accept()[0].close()

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(50)
        closing = threading.Thread(target=close_all, daemon=True)
        closing.start()
        process = commands.launch([sys.executable, "-c", MARKS], {"NARROWS_MARKS": path})
        assert ran(process) == (b"", 0)
        closing.join(20)
        assert not closing.is_alive()
    assert within(20, 0.01, lambda: not commands._marks)


def test_commands_of_a_task_that_is_lost_have_been_killed(commands: CommandChannel) -> None:
    process = commands.launch(["sleep", "300"], {"NARROWS_MARKS": ""})
    commands.close()
    assert ran(process) == (b"", -signal.SIGKILL)
    assert ran(commands.launch(["true"], {"NARROWS_MARKS": ""})) == (b"", -signal.SIGKILL)
    assert commands.kept() == b""
    with pytest.raises(ExperimentError, match="copied to worker-0: its task has ended"):
        commands.unpack("worker-0", b"")


def test_nobody_else_keeps_commands() -> None:
    """Its signals go to all processes that there are."""
    with pytest.raises(RuntimeError, match="first process"):
        CommandKeeper("/", 1)
