"""The netns fabric as a user without rights: the same links as root's, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_rig import process_name
from dashboard_queries import address_of, files_of
from observed_rig import assert_observed_as_documented, is_up
from private_host import PrivateHost
from processes_rig import keeping_mounts
from unprivileged import USER, as_user
from verdict_rig import accepted_run

from testbed.host import prometheus
from testbed.records.manifest import THRESHOLDS

pytestmark = pytest.mark.timeout(240)

SCENARIO = """
name: small
nodes: {server: {role: server}, worker: {role: worker, count: 1}}
links:
  default:
    up: {rate: 40 Mbit/s, queue: 50 ms, at: network}
    down: {rate: 40 Mbit/s, queue: 50 ms}
events: [{kind: step, links: [server], at: 1 s, rate: 20 Mbit/s}]
train:
  task: digits
  model: mlp
  optimizer: {name: sgd, lr: 0.1}
  pace: 150 ms
  stop: {steps: 12}
algorithms: [topk-0.15]
congestion: CONGESTION
"""
HELD = ("link", "direction", "at", "device", "kind", "rate_bits", "burst_bytes", "limit_bytes",
        "quantum_bytes", "gso_max_segs", "congestion")  # fmt: skip


class User:
    """That user on a host of the test's own."""

    def __init__(self, host: PrivateHost) -> None:
        self.host, self.home = host, host.folder
        os.chown(self.home, USER, USER)
        self.scenario = str(self.home / "small.yaml")

    def write(self, congestion: str = "cubic") -> None:
        Path(self.scenario).write_text(SCENARIO.replace("CONGESTION", congestion))

    def start(self, *command: str) -> subprocess.Popen[str]:
        return self.host.start(*as_user(self.home, *command), stderr=subprocess.PIPE)

    def python(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        return self.start(sys.executable, "-c", program, *arguments)

    def testbed(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start(sys.executable, "-m", "testbed", *arguments)

    def until(self, condition: Callable[[], object], timeout_s: float = 60.0) -> None:
        give_up = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < give_up
            time.sleep(0.05)


@pytest.fixture
def user() -> Iterator[User]:
    """In a folder that the user can reach, which pytest's own need not be."""
    with tempfile.TemporaryDirectory(prefix="narrows-rootless-") as folder:
        Path(folder).chmod(0o755)
        host = PrivateHost(Path(folder))
        before = host.state()
        try:
            user = User(host)
            user.write()
            yield user
            assert host.settle(before) == ""
        finally:
            host.close()


def records(folder: Path, name: str) -> dict[str, Any]:
    (found,) = folder.glob(f"runs/*/{name}")
    read: dict[str, Any] = json.loads(found.read_text())
    return read


def held(folder: Path) -> list[dict[str, Any]]:
    return [{key: link[key] for key in HELD} for link in records(folder, "manifest.json")["links"]]


@pytest.mark.timed
@pytest.mark.parametrize(
    "congestion",
    ["cubic", pytest.param("bbr", marks=[pytest.mark.nightly, pytest.mark.optional])],
)
@pytest.mark.judged
def test_links_are_the_same_as_roots(user: User, tmp_path: Path, congestion: str) -> None:
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    if congestion not in available:
        pytest.skip(f"this kernel has not loaded {congestion}")
    user.write(congestion)
    mine, roots = user.home / "mine", tmp_path / "roots"
    pair = replayed(user, mine, roots)
    assert held(mine) == held(roots)
    assert {link["congestion"] for link in held(mine)} == {congestion}
    assert records(mine, "manifest.json")["machine"]["user_namespace"]
    assert not records(roots, "manifest.json")["machine"]["user_namespace"]
    links = records(mine, "summary.json")["links"]
    assert {link["realtime"] for link in links} == {False}
    # a processor that the hypervisor took from one of them is no difference between users
    allowed = THRESHOLDS.ratio_deviation * (1 if all(r["verdict"] == "valid" for r in pair) else 5)
    for ours, theirs in zip(*(report["links"] for report in pair), strict=True):
        assert None not in (ours["busy_ratio"], theirs["busy_ratio"])
        assert ours["busy_ratio"] == pytest.approx(theirs["busy_ratio"], abs=allowed)


def replayed(user: User, mine: Path, roots: Path) -> list[dict[str, Any]]:
    """What is reported of the same replay as that user and as root, one after the other."""
    options = [
        "replay",
        user.scenario,
        "--seconds",
        "2.5",
        "--json",
        "--quiet",
        "--no-figures",
        "--out",
    ]
    as_root = [sys.executable, "-m", "testbed", *options, str(roots)]
    reports = []
    for folder, start in (
        (mine, lambda: user.testbed(*options, str(mine))),
        (roots, lambda: user.host.start(*as_root, stderr=subprocess.PIPE)),
    ):
        process = start()
        out, err = process.communicate(timeout=90)
        assert out, err
        (directory,) = folder.glob("runs/*")
        accepted_run(directory, process.returncode)
        reports.append(json.loads(out))
    return reports


@pytest.mark.judged
def test_training_works_and_its_files_are_the_users(user: User) -> None:
    process = user.testbed("run", user.scenario, "--json", "--no-figures")
    out, err = process.communicate(timeout=120)
    (run,) = json.loads(out)["runs"]
    assert run["steps"] == 12, err
    accepted_run(user.home / run["dir"], process.returncode)
    made = [path for path in user.home.rglob("*") if path.name != "small.yaml"]
    assert made and {path.stat().st_uid for path in made} == {USER}
    measures = records(user.home, "summary.json")["measures"]
    assert measures["byte_identity"]["state"] == "valid", measures


# every day test_exec.py ends jobs with SIGTERM, too, whose handler is that of SIGINT
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL],
)
def test_nothing_is_left_when_it_is_ended(user: User, number: signal.Signals) -> None:
    process = user.testbed("replay", user.scenario, "--seconds", "60")
    user.until(lambda: len(_nodes(user.host)) == 2)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 1)
    assert number == signal.SIGKILL or f"interrupted by {number.name}" in err
    if number == signal.SIGKILL:  # the journal, and what it names
        cleaning = user.testbed("clean")
        said = cleaning.communicate(timeout=60)
        assert cleaning.returncode == 0, said


def test_nodes_have_no_rights_and_see_no_other_network(user: User) -> None:
    process = user.testbed("replay", user.scenario, "--seconds", "60")
    try:
        seen: list[int] = []
        user.until(lambda: seen.extend(_nodes(user.host)) or seen)
        status = Path(f"/proc/{seen[0]}/status").read_text()
        held = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(held[kind], 16) == 0, kind
        assert held["NoNewPrivs"] == "1"
        for pid in user.host.processes():
            assert Path(f"/proc/{pid}").stat().st_uid == USER
            assert Path(f"/proc/{pid}/ns/net").readlink() != user.host.network()
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _nodes(host: PrivateHost) -> list[int]:
    """Those that have become nodes, and have given up every right."""
    forked = host.processes("testbed.fabric.fork_server")
    return [
        pid
        for pid in forked
        if process_name(pid) in {"server", "worker-0"}
        and "NoNewPrivs:\t1" in Path(f"/proc/{pid}/status").read_text()
    ]


def test_a_failed_run_cannot_be_kept(user: User) -> None:
    process = user.testbed("replay", user.scenario, "--keep")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2 and "--keep" in err
    assert not (user.home / "runs").exists()


LOCKS = """
import os
from testbed.host.user_namespace import enter_own_world
from testbed.runner.signals import _path
before = os.stat(_path())
enter_own_world()
print(os.path.samestat(before, os.stat(_path())), os.listdir("/run/netns") if os.path.exists("/run/netns") else [])
"""


def test_runs_of_all_users_wait_for_each_other(user: User) -> None:
    process = user.python(LOCKS)
    out, err = process.communicate(timeout=60)
    assert out == "True []\n", err


FORBIDDEN = """
import os, sys
from pathlib import Path
from testbed.host import user_namespace as rootless
rootless.enter_own_world()
Path("/proc/sys/user/max_user_namespaces").write_text("0")
from testbed.cli import main
rootless.privileged = lambda: False
os.geteuid = lambda: 1000
main(sys.argv[1:])
"""
"""A namespace in which no further one may be made stands for a host that forbids them, and its root for a user."""


def test_a_host_that_forbids_it_is_told_what_to_change(user: User) -> None:
    process = user.python(FORBIDDEN, "replay", user.scenario)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "sysctl -w user.max_user_namespaces=15000" in err and "sudo" in err
    assert "Traceback" not in err and not (user.home / "runs").exists()


def test_the_doctor_says_which_way_this_user_has(user: User) -> None:
    process = user.testbed("doctor", "--json")
    out, _ = process.communicate(timeout=60)
    found = {check["name"]: check for check in json.loads(out)["checks"]}
    assert found["nodes as namespaces"]["ok"]
    assert "user namespace" in found["nodes as namespaces"]["detail"]
    assert found["privileges"]["ok"] and found["queueing disciplines"]["ok"]


@pytest.mark.optional
@pytest.mark.skipif(
    prometheus.program() is None, reason="needs Prometheus, which `make observe` fetches"
)
def test_a_users_run_can_be_observed(user: User) -> None:
    """Its Prometheus, which the user finds on the path, and its forwarder have the rights that are documented."""
    out, mounts = user.home / "observed", user.home / "mounts"
    path = f"PATH={prometheus.require().parent}:{os.environ['PATH']}"
    command = ("env", path, sys.executable, "-m", "testbed", "run", user.scenario)
    options = ("--observe", "--no-figures", "--out", str(out))
    run = user.start(*keeping_mounts(mounts, *command, *options))
    user.until(lambda: run.poll() is not None or is_up(run.pid))
    assert run.poll() is None, run.communicate()
    host, address = mounts.read_text().splitlines(), address_of(files_of(out))
    assert_observed_as_documented(run.pid, "netns, user", address, USER, host)
    _, said = run.communicate(timeout=120)
    assert "Prometheus answers at http://127.0.0.1:" in said, said
    accepted_run(next(out.glob("runs/*")), run.returncode)
    (log,) = out.glob("comparisons/*/observe/prometheus.log")
    assert "level=error" not in log.read_text()
    assert not list((user.host.run / "tmp").glob("narrows-*-observe"))
