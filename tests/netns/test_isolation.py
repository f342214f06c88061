"""What a node may do to the host: nothing. As root, and as a user in a user namespace."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from command_rig import Command, command_line, descendants
from crossed_rig import write
from netns_rig import standing
from processes_rig import (
    gains_nothing,
    keeping_mounts,
    own_mounts,
    own_namespaces,
    power_of,
    promised,
    promised_reach,
    sockets_of,
    status_of,
    user_of,
)
from unprivileged import USER, as_user
from verdict_rig import accepted_run

from testbed import cgroups
from testbed.cli import main
from testbed.cli.exec import _readable
from testbed.errors import ExperimentError, MachineError
from testbed.fabric.file_view import NODE_USER
from testbed.process import PACKAGE, environment

pytestmark = [pytest.mark.root, pytest.mark.timeout(200)]
SCENARIO = """
name: isolated
nodes: {worker: {role: worker, count: 2}}
links: {default: {up: {rate: 100 Mbit/s, queue: 50 ms}, down: {rate: 100 Mbit/s, queue: 50 ms}}}
"""
JOB = """
import ctypes, json, os, platform, signal, socket, struct, sys
def tried(action):
    try:
        return ["done", repr(action())]
    except OSError as error:
        return ["refused", error.strerror]
def written(path):
    return tried(lambda: open(path, "ab").close())
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def cloned():
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    if checked(LIBC.syscall(number, NEW_USERS | signal.SIGCHLD, 0, 0, 0, 0)) == 0:
        os._exit(0)
def capable():
    maps = {"setgroups": "deny", "uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
    checked(LIBC.unshare(NEW_USERS))
    for name, text in maps.items():
        open(f"/proc/self/{name}", "w").write(text)
    os.setxattr(own, "security.capability", struct.pack("<5I", 0x02000001, 1 << 7, 0, 0, 0))
LIBC, NEW_USERS = ctypes.CDLL(None, use_errno=True), 0x10000000
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
own = f"own-{os.environ['RANK']}"
open(own, "w").write("x")
said = {
    "uid": status["Uid"].split(), "gid": status["Gid"].split(), "groups": os.getgroups(),
    "capabilities": [status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "new privileges": status["NoNewPrivs"].strip(), "host": socket.gethostname(),
    "address": socket.gethostbyname(socket.gethostname()) == os.environ["NARROWS_ADDRESS"],
    "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "mnt", "net", "pid", "uts")},
    "written": {path: written(path) for path in json.loads(sys.argv[1])},
    "shadow": tried(lambda: open("/etc/shadow").read()),
    "engine": tried(lambda: socket.socket(socket.AF_UNIX).connect("/run/docker.sock")),
    "set-id": [
        tried(lambda: os.chmod(own, 0o4755)), tried(lambda: os.chmod(own, 0o2755)),
        tried(lambda: os.close(os.open("made", os.O_CREAT | os.O_WRONLY, 0o4755))),
        tried(lambda: os.mknod("node", 0o104755)),
    ],
    "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()],
    "unmounted": tried(lambda: __import__("ctypes").CDLL(None).umount2(b"/tmp", 2) and None),
    "file capabilities": [tried(cloned), tried(capable)],
}
json.dump(said, open(f"said-{os.environ['RANK']}", "w"))
"""
FORBIDDEN = [
    "/etc/shadow", "/etc/passwd", "/etc/cron.d/narrows-test", "/usr/bin/narrows-test", "/root/.profile",
    "/root/narrows-test", "/var/narrows-test", "/sys/narrows-test", "/proc/sys/kernel/core_pattern",
    str(PACKAGE / "mark.py"), str(PACKAGE / "planted.py"),
]  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of root's that nobody else may enter."""
    made = Path.home() / f"narrows-isolation-{os.getpid()}"
    made.mkdir(mode=0o700)
    yield made
    shutil.rmtree(made)


def accept(command: Command, code: int) -> Path:
    """The directory of a command's only run, which ended as it may."""
    (directory,) = (run for run in command.runs() if run.is_dir())
    accepted_run(directory, code)
    return directory


def executed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.chdir(folder)
    (folder / "scenario.yaml").write_text(SCENARIO)
    (folder / "job.py").write_text(JOB)
    command = Command(
        folder, "exec", "scenario.yaml", "--", "python", "job.py", json.dumps(FORBIDDEN)
    )
    code, _, err = command.finish(120.0)
    assert (folder / "said-0").exists(), err
    accept(command, code)
    return [json.loads((folder / f"said-{rank}").read_text()) for rank in range(2)]


def test_roots_nodes_are_nobody_of_the_hosts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: set[str]
) -> None:
    said = executed(folder, monkeypatch)
    for rank, one in enumerate(said):
        assert one["uid"] == one["gid"] == [str(NODE_USER)] * 4 and one["groups"] == []
        assert [int(bits, 16) for bits in one["capabilities"]] == [0] * 5
        assert one["new privileges"] == "1"
        assert (one["host"], one["address"]) == (f"worker-{rank}", True)
        assert {path: how for path, (how, _) in one["written"].items()} == dict.fromkeys(
            FORBIDDEN, "refused"
        )
        assert one["shadow"][0] == one["engine"][0] == "refused"
        assert [how for how, _ in one["set-id"]] == ["refused"] * 4
        assert [how for how, _ in one["file capabilities"]] == ["refused"] * 2
        assert len(one["processes"]) == 2
    own = {name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in said[0]["namespaces"]}
    for name, mine in own.items():
        assert len({mine, *(one["namespaces"][name] for one in said)}) == 3, name
    for (
        path
    ) in folder.iterdir():  # what a job writes is the folder's owner's, and runs as nobody else
        found = path.stat()
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
        assert not found.st_mode & (stat.S_ISUID | stat.S_ISGID)
        assert os.listxattr(path) == []
    assert not Path("/etc/cron.d/narrows-test").exists()


def test_a_job_does_not_write_its_own_records(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "scenario.yaml").write_text(SCENARIO)
    script = "rm -rf runs/*/* ; echo x >> runs/*/manifest.json ; echo x > runs/own"
    command = Command(folder, "exec", "scenario.yaml", "--", "sh", "-c", script)
    code, _, _ = command.finish(120.0)
    directory = accept(command, code)
    assert json.loads((directory / "manifest.json").read_text())
    assert (folder / "runs/own").read_text() == "x\n"


def test_folders_that_all_use_are_no_working_folders_of_roots(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "scenario.yaml").write_text(SCENARIO)
    (folder / "home/user").mkdir(parents=True)
    (folder / "link").symlink_to(folder / "home")
    roots, user = pwd.getpwuid(0).pw_dir, str(folder / "home/user")
    by_home = {
        roots: ("/", "/tmp", "/etc", "/usr/lib", "/var/lib", "/var/spool", roots),
        user: (roots, str(folder / "home"), user),
        str(folder / "link"): (str(folder / "home"),),
    }
    for home, where in ((home, where) for home, places in by_home.items() for where in places):
        monkeypatch.setenv("HOME", home)
        monkeypatch.chdir(where)
        with pytest.raises(SystemExit) as left:
            main(["exec", str(folder / "scenario.yaml"), "--out", str(folder), "--", "true"])
        err = " ".join(capsys.readouterr().err.split())
        assert left.value.code == 2 and "Start it in a folder of its own" in err, err
    assert not (folder / "runs").exists()


def test_what_root_may_enter_alone_is_not_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = Path.home() / f"narrows-secret-{os.getpid()}"
    secret.write_text("secret")
    secret.chmod(0o644)
    monkeypatch.chdir(folder)
    (folder / "scenario.yaml").write_text(SCENARIO)
    try:
        command = Command(folder, "exec", "scenario.yaml", "--", "cat", str(secret))
        code, _, err = command.finish(60.0)
        assert code != 0 and "No such file" in err
        before = set(command.runs())
        arguments = ("exec", "scenario.yaml", "--read", str(secret), "--", "cp", str(secret), "got")
        command = Command(folder, *arguments)
        code, _, _ = command.finish(60.0)
        (run,) = set(command.runs()) - before
        accepted_run(run, code)
        assert (folder / "got").read_text() == "secret"
    finally:
        secret.unlink()


def test_a_link_to_read_that_leads_elsewhere_later_is_not_shown(
    tmp_path: Path, state: Path
) -> None:
    """Its owner has it lead to what only root may read, after it was checked."""
    link, meant, secrets = (tmp_path / name for name in ("link", "meant", "secrets"))
    for folder, mode in ((meant, 0o755), (secrets, 0o700)):
        folder.mkdir(mode=mode)
        (folder / "file").write_text(folder.name)
    link.symlink_to(meant)
    read = _readable([link])
    link.unlink()
    link.symlink_to(secrets)
    with standing(tmp_path, state, read=read) as rig:
        with pytest.raises(ExperimentError, match="another folder than the run began with"):
            rig.fabric.launch("worker-0", ["true"], {})
        link.unlink()
        link.symlink_to(meant)
        job = rig.fabric.launch("worker-0", ["cat", str(link / "file")], {})
        assert job.stdout is not None and job.stdout.read() == b"meant"
        job.stdout.close()


def test_other_programs_are_started_as_nobody_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows of replays and benchmarks; their temporary files are where they can make some."""
    from testbed.fabric.node_launcher import command_in

    monkeypatch.setenv("TMPDIR", "/tmp/out-of-sight")
    script = "id -u; id -G; mktemp; touch /etc/narrows-test; grep -c 00000000 /proc/self/status"
    done = subprocess.run(
        command_in("/proc/self/ns/net", os.getpid(), ["sh", "-c", script]),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    user, groups, file = done.stdout.split()[:3]
    assert user == groups == str(NODE_USER) and file.startswith("/tmp/tmp."), done.stderr
    assert "Read-only file system" in done.stderr


IN_GUEST = "NARROWS_GUEST_RIGHTS" in os.environ
"""Whether tests/guest has started this in a guest, where every process is as documented for a guest."""
OTHERS = {
    "root": {},
    "user": {str(USER): "the user"},
    "guest": {str(USER): "the folder's owner"},
}
"""Names of user ids in the documentation, by who starts the command."""
CALLERS = ["guest"] if IN_GUEST else ["root", "user"]
WAITS = "import os, time; open(f\"here-{os.environ['RANK']}\", 'w').close(); time.sleep(600)"


FLOWS = {"replay": {"testbed.runner.bulk_flow"}, "run": {"iperf3 -c", "iperf3 -s"}}
"""Processes beside the nodes, by verb: at the switch's end of a link, and at both ends of cross traffic."""


def reach(pid: int, directory: Path, host: Sequence[str] = ()) -> tuple[set[str], set[str]]:
    """The same, read off a process. ``host``: mounts of whoever started the command."""
    names = {str(directory): "its folder", str(directory / "runs"): "runs/ in it"}
    return own_mounts(pid, names, host), set(sockets_of(pid))


def rights(pid: int, who: str) -> tuple[str, tuple[str, str, set[str]]]:
    """A process's row, read off itself."""
    status = status_of(pid)
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    module = next((word for word in words if word.startswith("testbed.")), "testbed")
    if words[0] == "iperf3":
        module = " ".join(words[:2])
    elif len(status["NSpid"]) > 1:
        module = "a node's first process" if status["NSpid"][-1] == "1" else "a job's process"
    name = user_of(status, {"0": "root", **OTHERS[who]})
    power = power_of(pid)
    assert power != "none" or gains_nothing(pid), f"{module}: {status}"
    return module, (name, power, own_namespaces(pid))


@contextmanager
def folder_of(who: str) -> Iterator[Path]:
    """An empty folder that all may enter, root's or the user's; in a guest root works in the user's."""
    with tempfile.TemporaryDirectory(prefix="narrows-isolation-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        if who != "root":
            os.chown(folder, USER, USER)
        yield folder


@pytest.mark.parametrize("who", CALLERS)
def test_every_process_has_what_is_documented(who: str) -> None:
    """A user's ``testbed``, agent and forking process have their namespaces in common."""
    with folder_of(who) as folder:
        (folder / "scenario.yaml").write_text(SCENARIO)
        (folder / "job.py").write_text(WAITS)
        mounts = folder / "mounts"
        command = keeping_mounts(
            mounts,
            *(sys.executable, "-m", "testbed", "exec", "scenario.yaml"),
            *("--", sys.executable, "job.py"),
        )
        with subprocess.Popen(
            as_user(folder, *command) if who == "user" else command, cwd=folder, env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            try:
                give_up = time.monotonic() + 90
                while len(list(folder.glob("here-*"))) < 2:
                    assert time.monotonic() < give_up and process.poll() is None, (
                        process.stdout.read()
                    )
                    time.sleep(0.05)
                found: dict[str, set[str]] = {}
                expected, reached = promised(who), promised_reach(who)
                host = mounts.read_text().splitlines()
                for pid in [process.pid, *descendants(process.pid)]:
                    name, row = rights(pid, who)
                    assert row == expected[name], name
                    assert reach(pid, folder, host) == reached[name], name
                    assert name.startswith("a ") or own_namespaces(pid, process.pid) == set(), name
                    found.setdefault(name, set()).add(str(pid))
                assert found.keys() == expected.keys() - {"run: a node"}.union(*FLOWS.values())
                assert reached.keys() == expected.keys()
                assert len(found["a job's process"]) == len(found["a node's first process"]) == 2
            finally:
                process.terminate()
                process.communicate(timeout=30)


# every day test_every_process_has_what_is_documented reads the processes of exec
@pytest.mark.nightly
@pytest.mark.parametrize("who", CALLERS)
@pytest.mark.parametrize("verb", FLOWS)
def test_nodes_of_ours_have_what_is_documented(verb: str, who: str) -> None:
    bulk = "{name: bulk, from: noise-0, to: noise-1, kind: tcp, at: 0 s}"
    options = ["--seconds", "60"] if verb == "replay" else []
    with folder_of(who) as folder:
        write(folder, traffic=bulk, steps=2000)
        command = [sys.executable, "-m", "testbed", verb, "crossed.yaml", *options]
        with subprocess.Popen(
            as_user(folder, *command) if who == "user" else command, cwd=folder, env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            try:
                give_up = time.monotonic() + 90
                while not carries_traffic(process.pid, verb):
                    assert time.monotonic() < give_up and process.poll() is None, (
                        process.stdout.read()
                    )
                    time.sleep(0.05)
                expected, reached = promised(who), promised_reach(who)
                rows: dict[str, list[Any]] = {}
                for pid in [process.pid, *descendants(process.pid)]:
                    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                        name, row = rights(pid, who)
                        rows.setdefault(name, []).append((row, reach(pid, folder)))
                nodes = rows.pop("a node's first process")
                assert nodes == [(expected["run: a node"], reached["run: a node"])] * 5
                known = {name for name in expected if "node" not in name and "job" not in name}
                assert rows.keys() == known - set().union(*FLOWS.values()) | FLOWS[verb]
                for name, processes in rows.items():
                    assert [row for row, _ in processes] == [expected[name]] * len(processes)
                for name in FLOWS[verb]:
                    mounts, sockets = zip(*(reach for _, reach in rows[name]), strict=True)
                    assert set(map(frozenset, mounts)) == {frozenset(reached[name][0])}, name
                    assert set.union(*sockets) == reached[name][1], name
            finally:
                process.terminate()
                process.communicate(timeout=30)


def carries_traffic(command: int, verb: str) -> bool:
    """Whether flows are connected, and no process of the command is still being started."""
    lines = {pid: command_line(pid) for pid in descendants(command)}
    sockets: set[str] = set()
    for pid, line in lines.items():
        if any(name in line.replace("\0", " ") for name in FLOWS[verb]):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                sockets.update(sockets_of(pid))
    started = not any("node_launcher" in line for line in lines.values())
    return started and {"inet", "listening inet"} <= sockets


FORKS = """
import glob, os, time
open(f"begun-{os.environ['RANK']}", "w").close()
while len(glob.glob("begun-*")) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)  # who begins later could not, where all have so many processes together
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except OSError as error:
    print("refused", error.strerror)
open(f"forks-{os.environ['RANK']}", "w").write(str(made))
"""


def forked(folder: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> tuple[list[int], str]:
    """How many processes each of two nodes could start that may have 50, and what the command complained of."""
    monkeypatch.chdir(folder)
    bounded = SCENARIO.replace("count: 2}", "count: 2, limits: {processes: 50}}")
    (folder / "scenario.yaml").write_text(bounded)
    (folder / "job.py").write_text(FORKS)
    command = Command(folder, "exec", "scenario.yaml", "--", "python", "job.py", **how)
    code, _, err = command.finish(120.0)
    accept(command, code)
    return [int((folder / f"forks-{rank}").read_text()) for rank in range(2)], err


@pytest.mark.optional
def test_a_node_has_only_so_many_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        cgroups.find()
    except MachineError as error:
        pytest.skip(f"no control groups: {error}")
    made, err = forked(folder, monkeypatch)
    assert all(40 <= number < 50 for number in made), (made, err)


WITHOUT_GROUPS = """
from testbed.process import NEW_MOUNTS, make_private, mount, unshare
unshare(NEW_MOUNTS)
make_private()
mount("none", "/sys/fs/cgroup", "tmpfs", 0)
from testbed.__main__ import main
main()
"""


def test_roots_nodes_without_control_groups_have_only_so_many_processes_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, err = forked(folder, monkeypatch, program=WITHOUT_GROUPS)
    assert 60 <= sum(made) < 100, (made, err)


SIZES = """
import json, os
def size(path):
    found = os.statvfs(path)
    return found.f_frsize * found.f_blocks
json.dump([size(path) for path in ("/tmp", "/var/tmp", "/dev/shm")], open("sizes", "w"))
try:
    with open("/tmp/large", "wb") as file:
        file.write(bytes(2 << 20))
except OSError as error:
    print("refused", error.strerror)
"""


def test_a_nodes_own_folders_hold_what_its_limits_say(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    bounded = SCENARIO.replace("count: 2}", "count: 1, limits: {memory: 1 GiB, tmp: 1 MiB}}")
    (folder / "scenario.yaml").write_text(bounded)
    (folder / "job.py").write_text(SIZES)
    command = Command(folder, "exec", "scenario.yaml", "--", "python", "job.py")
    _, out, err = command.finish(60.0)
    assert json.loads((folder / "sizes").read_text()) == [1 << 20, 1 << 20, 1 << 30], err
    assert "refused No space left on device" in out
