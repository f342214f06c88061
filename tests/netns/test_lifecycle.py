"""Nothing is left behind, whoever is killed; and nodes have no rights."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from netns_rig import (
    MBIT,
    Rig,
    assert_nothing_left,
    host_objects,
    names_of,
    rate_of,
    standing,
)

from testbed.errors import ExperimentError
from testbed.fabric.netns import _planning
from testbed.journal import abandoned, folder, journals
from testbed.links.network import namespaces
from testbed.process import environment, module_command
from testbed.scenario.link_state import LinkDirection

CONTROLLER = """
import sys, time
from pathlib import Path
from testbed.fabric.base import RunContext
from testbed.fabric.netns import NetnsFabric
sys.path[:0] = [{here!r}, str(Path({here!r}).parent)]
from netns_rig import specs
fabric = NetnsFabric(RunContext("killed", Path({folder!r}), "token", trains=False))
fabric.create(specs())
fabric.start()
print(fabric.agent.pid, *(p.pid for p in fabric._processes.values()), flush=True)
time.sleep(60)
"""


@pytest.fixture
def rig(tmp_path: Path, state: Path) -> Iterator[Rig]:
    """Whose nodes can be started."""
    with standing(tmp_path, state, staffed=True) as made:
        yield made


def eventually(what: Callable[[], bool], seconds: float = 10.0) -> bool:
    give_up = time.monotonic() + seconds
    while not what():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def test_nodes_run_without_any_right(rig: Rig) -> None:
    places = rig.fabric.start()
    process = rig.fabric._processes["worker-0"]
    assert eventually(lambda: status(process.pid)["Name"] == "worker-0")
    assert eventually(lambda: status(process.pid)["NoNewPrivs"] == "1")
    held = status(process.pid)
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(held[kind], 16) == 0, kind
    assert held["NoNewPrivs"] == "1"
    assert held["NSsid"].split()[0] == str(process.pid)
    inside = Path(f"/proc/{process.pid}/ns/net").stat().st_ino
    assert inside == Path(str(places["worker-0"].nic.netns)).stat().st_ino
    assert not rig.fabric.dead()
    os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: rig.fabric.dead() == {"worker-0": "killed by signal 9"})


def test_destroy_twice_and_at_any_time(rig: Rig) -> None:
    rig.fabric.start()
    rig.fabric.destroy()
    rig.fabric.destroy()
    assert not rig.agent.alive()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signalled_agent_undoes_everything(rig: Rig, number: signal.Signals) -> None:
    rig.prepare({end: rate_of(10 * MBIT) for end in rig.ends()})
    os.kill(rig.agent.pid, number)
    assert eventually(lambda: not rig.agent.alive())
    assert_nothing_left(names_of(rig))


def test_a_killed_agent_is_swept_up_after(rig: Rig) -> None:
    rig.prepare({end: rate_of(10 * MBIT) for end in rig.ends()}, at={"server": "network"})
    os.kill(rig.agent.pid, signal.SIGKILL)
    with pytest.raises(ExperimentError, match="links agent ended by signal 9"):
        rig.prepare({LinkDirection("server", "up"): rate_of(MBIT)})
    assert set(names_of(rig)) & host_objects()["namespaces"]
    rig.fabric.destroy()
    assert_nothing_left(names_of(rig))


def controller(state: Path, tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    program = CONTROLLER.format(here=str(Path(__file__).parent), folder=str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    with process.stdout:
        return process, [int(word) for word in process.stdout.readline().split()]


def test_a_killed_controller_leaves_nothing_running(state: Path, tmp_path: Path) -> None:
    process, pids = controller(state, tmp_path)
    (journal,) = journals()
    assert not journal.abandoned()
    names = [entry["name"] for entry in journal.entries if "name" in entry]
    process.kill()
    process.wait()
    assert eventually(lambda: all(map(gone, pids)))
    assert_nothing_left(names)
    assert [journal.run for journal in abandoned()] == ["killed"]
    (cleaned,) = clean(state)["runs"]
    assert cleaned["run"] == "killed"
    assert all(str(what).startswith("control group ") for what in cleaned["removed"])
    assert not journals()


def test_clean_removes_exactly_what_was_abandoned(rig: Rig, state: Path, tmp_path: Path) -> None:
    process, (agent, *nodes) = controller(state, tmp_path)
    names = [e["name"] for j in journals() if j.run == "killed" for e in j.entries if "name" in e]
    strange = namespaces.make("nw-stranger")
    try:
        os.kill(agent, signal.SIGKILL)
        process.kill()
        process.wait()
        assert eventually(lambda: all(map(gone, [agent, *nodes])))
        assert set(names) & host_objects()["namespaces"]
        (cleaned,) = clean(state)["runs"]
        assert cleaned["run"] == "killed"
        made = {name for name in names if name.startswith("nw-")}
        assert {f"namespace {name}" for name in made} <= set(cleaned["removed"])
        assert_nothing_left(names)
        assert Path(strange).exists()
        assert rig.agent.alive()
        rig.prepare({end: rate_of(10 * MBIT) for end in rig.ends()})
    finally:
        namespaces.remove("nw-stranger")


def clean(state: Path) -> dict[str, list[dict[str, object]]]:
    program = "import typer; from testbed.cli.doctor import clean; typer.run(clean)"
    done = subprocess.run(
        [sys.executable, "-c", program, "--json"],
        check=True,
        capture_output=True,
        env=environment(),
    )
    answer: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
    return answer


def test_flows_run_as_processes_inside_the_switch(rig: Rig) -> None:
    from testbed.fabric.node_launcher import command_in

    place = rig.places["worker-0"]
    rig.prepare({end: rate_of(20 * MBIT) for end in rig.ends()})
    stop = str(time.monotonic_ns() + 3_000_000_000)

    def flow(netns: str | None, what: str) -> subprocess.Popen[bytes]:
        address = (rig.networks.switch_address, "9000", stop)
        command = module_command("testbed.runner.bulk_flow", what, *address)
        whole = command_in(str(netns), os.getpid(), command)
        return subprocess.Popen(whole, stdout=subprocess.PIPE, env=environment())

    both = [flow(rig.networks.switch_netns, "serve"), flow(place.nic.netns, "blast")]
    moved = [json.loads(process.communicate(timeout=20)[0])["bytes"] for process in both]
    assert moved[0] > 500_000
    assert moved[1] >= moved[0]


def test_runs_are_planned_one_at_a_time(state: Path) -> None:
    """Two that look for free networks at the same time would find the same ones."""
    entered = threading.Event()

    def plan() -> None:
        with _planning():
            entered.set()

    with (folder() / "planning.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        planning = threading.Thread(target=plan)
        planning.start()
        assert not entered.wait(0.3)
        fcntl.flock(other, fcntl.LOCK_UN)
        planning.join(10.0)
    assert entered.is_set()
