"""Journals on disk, and sweeping up what they list."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_here import carried_out_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed import cgroups
from testbed.errors import InputError, MachineError
from testbed.fabric.base import RunContext, new_id
from testbed.fabric.cleanup import (
    JournaledFabric,
    clean_folder,
    clean_link,
    clean_process,
    register,
    sweep,
)
from testbed.fabric.netns import NetnsFabric, plan_topology
from testbed.journal import (
    KEPT,
    Entry,
    Journal,
    abandoned,
    cleaners,
    folder,
    journals,
    lives,
    start_time,
)
from testbed.links.agent.protocol import read
from testbed.links.network import namespaces
from testbed.links.network.wiring import TopologyPlan
from testbed.topology import NodeSpec


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NARROWS_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_entries_are_on_disk_at_once() -> None:
    journal = Journal.open("abc")
    journal.add("link", name="nwabc-c", alias="narrows abc")
    (read,) = journals()
    assert (read.run, read.pid) == ("abc", os.getpid())
    assert read.entries == [{"kind": "link", "name": "nwabc-c", "alias": "narrows abc"}]
    assert not read.abandoned()
    assert abandoned() == []
    journal.close()
    journal.close()
    assert journals() == []


def recorder(
    done: list[tuple[str, bool]], made: Path, fails: str
) -> Callable[[str], Callable[[], None]]:
    """Parts that note in ``done`` that they are called, and whether ``made`` is there then; one fails."""

    def part(name: str) -> Callable[[], None]:
        def act() -> None:
            done.append((name, made.exists()))
            if name == fails:
                raise OSError(name)

        return act

    return part


@pytest.mark.parametrize("fails", ["agent", "first", "logs", "none"])
def test_a_fabric_removes_all_whatever_fails(tmp_path: Path, fails: str) -> None:
    made = tmp_path / "made"
    made.mkdir()
    done: list[tuple[str, bool]] = []
    part = recorder(done, made, fails)
    register()
    fabric = JournaledFabric()
    fabric.remove(part("last"))
    assert done == [("last", True)]
    fabric.journal = Journal.open("abc")
    fabric.journal.add("folder", path=str(made))
    fabric.agent = SimpleNamespace(close=part("agent"))
    fabric.save_logs = part("logs")  # type: ignore[method-assign]
    with pytest.raises(OSError, match=fails) if fails != "none" else nullcontext():
        fabric.remove(part("last"), part("first"))
    before = [(name, True) for name in ("agent", "first", "logs")]
    assert done[1:] == [*before, ("last", False)] and journals() == []


PARTS = ("tear_down", "agent", "forker", "logs", "starter")
"""Parts of a run in namespaces, in the order in which they are closed."""


def half_dead(part: Callable[[str], Callable[[], None]]) -> Any:
    """A run in namespaces whose only process does not end in time."""

    def wait(timeout_s: float) -> int:
        raise subprocess.TimeoutExpired("a node", timeout_s)

    register()
    fabric: Any = object.__new__(NetnsFabric)
    fabric.journal = Journal.open("abc")
    fabric._wired, fabric._groups = {}, {}
    no_group = 2**31 - 1  # more than Linux ever gives
    fabric._processes = {"w-0": SimpleNamespace(pid=no_group, poll=lambda: None, wait=wait)}
    fabric.agent = SimpleNamespace(tear_down=part("tear_down"), close=part("agent"))
    fabric._forker = SimpleNamespace(close=part("forker"))
    fabric._logs = SimpleNamespace(close=part("logs"))
    fabric._starter = SimpleNamespace(shutdown=part("starter"))
    return fabric


@pytest.mark.parametrize("fails", [*PARTS, "none"])
def test_a_run_in_namespaces_is_removed_whole_whatever_fails(tmp_path: Path, fails: str) -> None:
    made = tmp_path / "made"
    made.mkdir()
    done: list[tuple[str, bool]] = []
    fabric = half_dead(recorder(done, made, fails))
    fabric.journal.add("folder", path=str(made))
    with pytest.raises(OSError, match=fails) if fails != "none" else nullcontext():
        fabric.destroy()
    assert done == [(name, True) for name in PARTS]
    assert not made.exists() and journals() == []


def test_a_control_group_that_stays_is_named_when_all_else_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_END_S", 0.0)
    group = tmp_path / "narrows-abc" / "w-0"
    group.mkdir(parents=True)
    (group / "cgroup.procs").touch()  # here a file, so that the folder cannot be removed
    done: list[tuple[str, bool]] = []
    fabric = half_dead(recorder(done, group, "none"))
    fabric._groups["w-0"] = cgroups.ControlGroup((group,))
    fabric.journal.add(cgroups.KIND, path=str(group))
    with pytest.raises(MachineError, match="of run 'abc' not removed: cgroup"):
        fabric.destroy()
    assert done == [(name, True) for name in PARTS]
    assert [journal.run for journal in journals()] == ["abc"]


def test_a_run_cannot_be_there_twice() -> None:
    Journal.open("abc")
    with pytest.raises(InputError, match="already"):
        Journal.open("abc")


@pytest.mark.parametrize("mode", [0o720, 0o770, 0o702, 0o777])
def test_journals_that_others_could_have_written_are_not_believed(state: Path, mode: int) -> None:
    """Somebody of the group, or anybody; that they may read them is no harm."""
    state.mkdir()
    state.chmod(0o755)
    assert folder() == state
    state.chmod(mode)
    with pytest.raises(MachineError, match="others can write to the folder of journals"):
        folder()


def test_abandoned_when_the_process_is_gone_or_another(state: Path) -> None:
    journal = Journal.open("abc")
    text = journal.path.read_text()
    boot, _, ticks = journal.start.partition("/")
    for other in ("elsewhere/1", f"elsewhere/{ticks}", f"{boot}/{int(ticks) + 1}"):
        journal.path.write_text(text.replace(journal.start, other))
        assert [found.run for found in abandoned()] == ["abc"], other


def test_a_line_cut_off_by_a_crash_is_no_entry() -> None:
    journal = Journal.open("abc")
    journal.add("link", name="a", alias="narrows abc")
    journal.add("link", name="nwi7", alias="narrows")  # a shaper's, in the host's namespace
    journal.add("link", name="eth0", alias="the uplink")  # no run gives a device such an alias
    with journal.path.open("a") as file:
        file.write('{"kind": "link", "na')
    (read,) = journals()
    assert [entry["name"] for entry in read.entries] == ["a", "nwi7"]


LINE = st.one_of(
    st.binary(max_size=60),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["kind", "run", "pid", "start", "name", "network", "path", "alias"]
                ),
                inner | st.sampled_from(["link", "process", "subnet", "namespace", "folder"]),
            )
        ),
    ).map(lambda found: json.dumps(found).encode()),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINE, max_size=8))
def test_whatever_is_in_a_journal_stops_nobody(lines: list[bytes]) -> None:
    """Nothing that has no name is removed; what is left out says nothing that could be removed."""
    folder().joinpath("strange.journal").write_bytes(b"\n".join([b"", *lines]))
    for journal in journals():
        for entry in journal.entries:
            assert isinstance(entry["kind"], str)
            if entry["kind"] == "subnet":
                IPv4Network(entry["network"])
            if entry["kind"] in ("link", "namespace"):
                assert isinstance(entry["name"], str)
            if entry["kind"] == "process":
                assert lives(entry["pid"], entry["start"]) is False
        journal.abandoned()


def test_a_journal_of_nonsense_is_swept_and_holds_up_nobody(state: Path) -> None:
    state.mkdir()
    nonsense = [b"\xff\xfe", b'{"run": 5}', b"[" * 5000, b'{"kind": ["link"], "name": 3}', b'{"kind": "subnet", "network": "x"}']  # fmt: skip
    (state / "strange.journal").write_bytes(b"\n".join(nonsense))
    (strange,) = abandoned()
    assert sweep(strange) == [] and journals() == []


def test_an_empty_journal_is_abandoned(state: Path) -> None:
    state.mkdir()
    half = state / "half.journal"
    half.touch()
    assert not abandoned(), "its first line may be under way"
    os.utime(half, (0, 0))
    assert [found.run for found in abandoned()] == ["half"]


def test_sweeping_goes_backwards_and_keeps_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []

    def remove(entry: Entry) -> list[str]:
        if entry["name"] == "stuck":
            raise OSError(16, "busy")
        gone.append(entry["name"])
        return [f"thing {entry['name']}"]

    monkeypatch.setitem(cleaners, "thing", remove)
    journal = Journal.open("abc")
    for name in ("first", "second"):
        journal.add("thing", name=name)
    assert sweep(journal) == ["thing second", "thing first"]
    assert journals() == []
    stuck = Journal.open("def")
    stuck.add("thing", name="stuck")
    stuck.add("nosuch", name="x")
    with pytest.raises(MachineError, match=r"nosuch.*busy"):
        sweep(stuck)
    assert [found.run for found in journals()] == ["def"]


def test_only_that_very_process_is_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        start = start_time(process.pid)
        assert start is not None
        assert lives(process.pid, start)
        boot, _, ticks = start.partition("/")
        others = ["another", f"{boot}/{int(ticks) - 1}", f"{boot}/", f"{ticks}/{ticks}", boot, ""]
        for other in others:  # the number was given to it since: in this boot, or in another
            assert not lives(process.pid, other), other
            assert clean_process({"pid": process.pid, "start": other}) == [], other
            assert process.poll() is None, other
        assert clean_process({"pid": process.pid, "start": start}) == [f"process {process.pid}"]
        assert process.wait(60) == -15
        assert start_time(process.pid) is None
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_does_not_end_when_asked_is_made_to() -> None:
    code = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == b"\n"
            entry = {"pid": process.pid, "start": start_time(process.pid)}
            assert clean_process(entry) == [f"process {process.pid}"]
            assert process.wait(60) == -9
        finally:
            process.kill()


def test_only_a_folder_itself_is_removed(tmp_path: Path) -> None:
    folder_, link = tmp_path / "narrows-a", tmp_path / "narrows-b"
    (folder_ / "inside").mkdir(parents=True)
    link.symlink_to(folder_)
    assert clean_folder({"path": str(link)}) == [] and (folder_ / "inside").exists()
    assert clean_folder({"path": str(folder_)}) == [f"folder {folder_}"]
    assert clean_folder({"path": str(folder_)}) == [] and not folder_.exists()


def test_clean_leaves_a_run_that_goes_on_unless_all_is_asked_for(tmp_path: Path) -> None:
    """This process is the run's controller, and lives."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        journal = Journal.open("abc")
        journal.add("process", pid=process.pid, start=start_time(process.pid))
        assert carried_out_in(tmp_path, "clean") == (0, "nothing to clean\n", "")
        assert process.poll() is None
        said = f"run abc: removed process {process.pid}\n"
        assert carried_out_in(tmp_path, "clean", "--all") == (0, said, "")
        assert process.wait(60) == -15
        assert journals() == []
    finally:
        process.kill()
        process.communicate()


def test_clean_leaves_what_was_kept_and_says_so_unless_all_is_asked_for(tmp_path: Path) -> None:
    """Its process is dead; another dead run's things are removed meanwhile."""
    for name in ("kept", "left"):
        made = tmp_path / f"narrows-{name}"
        made.mkdir()
        journal = Journal.open(name)
        journal.add("folder", path=str(made))
        if name == "kept":
            journal.add(KEPT)
        journal.path.write_text(journal.path.read_text().replace(journal.start, "elsewhere/1"))
    told = "kept, until `testbed clean --all`: kept\n"
    gone = f"run left: removed folder {tmp_path / 'narrows-left'}\n"
    assert carried_out_in(tmp_path, "clean") == (0, gone, told)
    assert carried_out_in(tmp_path, "clean") == (0, "nothing to clean\n", told)
    assert (tmp_path / "narrows-kept").exists()
    said = f"run kept: removed folder {tmp_path / 'narrows-kept'}\n"
    assert carried_out_in(tmp_path, "clean", "--all") == (0, said, "")
    assert journals() == []


@pytest.mark.parametrize("stuck", [1, 2])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_clean_ends_as_a_failure_where_something_is_left(
    tmp_path: Path, stuck: int, options: list[str]
) -> None:
    """Every run that is left is named, others are removed, and the next ``clean`` says the same."""
    names = [*["a-sound", "b-stuck", "c-stuck"][: 1 + stuck], "d-sound"]
    for name in names:
        made = tmp_path / f"narrows-{name}"
        made.mkdir()
        journal = Journal.open(name)
        journal.add("folder", path=str(made))
        if "stuck" in name:
            journal.add("of a later version", name="something")
        journal.path.write_text(journal.path.read_text().replace(journal.start, "elsewhere/1"))
    for removed in (["a-sound", "d-sound"], []):
        code, out, err = carried_out_in(tmp_path, "clean", *options)
        assert code == MachineError.exit_code
        if options:
            assert [run["run"] for run in json.loads(out)["runs"]] == removed
        else:
            assert re.findall("run (\\S+): removed", out) == removed
        left = [name for name in names if "stuck" in name]
        assert re.findall("of run '(\\S+)' not removed: of a later version", err) == left
        assert [journal.run for journal in journals()] == left
    assert not list(tmp_path.glob("narrows-*")), "what can be removed is, whatever else is left"


def test_names_fit_devices_and_differ_between_runs() -> None:
    specs = [NodeSpec("server", "server", "server", 0, 0)]
    specs += [NodeSpec(f"a-very-long-group-name-{n}", "g", "worker", n, n + 1) for n in range(250)]
    one, (data, control) = plan_topology("abc", specs, [])
    two, _ = plan_topology("abd", specs, [data, control])
    for ports in ([n.port for n in one.nodes], [n.control_port for n in one.nodes]):
        assert len(set(ports)) == len(specs) and all(len(name) <= 15 for name in ports)
    own = {one.switch_netns, one.control_netns, *(node.netns for node in one.nodes)}
    assert len(own) == len(specs) + 2
    assert not own & {two.switch_netns, two.control_netns, *(node.netns for node in two.nodes)}
    assert one.switch_address not in {node.data_address for node in one.nodes}
    assert not data.overlaps(control)
    assert two.switch_address != one.switch_address
    assert read(TopologyPlan, asdict(one)) == one


def test_all_that_a_run_will_make_is_in_its_journal_before_anything_is(tmp_path: Path) -> None:
    fabric: Any = object.__new__(NetnsFabric)
    fabric.context = RunContext("abc", tmp_path, "token")
    specs = [NodeSpec("server", "server", "server", 0, 0), NodeSpec("w-0", "w", "worker", 0, 1)]
    plan = fabric._reserve(specs)
    (journal,) = journals()
    noted = {(entry["kind"], entry.get("name"), entry.get("netns")) for entry in journal.entries}
    netns = {plan.switch_netns, plan.control_netns, *(node.netns for node in plan.nodes)}
    made = {("namespace", name, None) for name in netns}
    made |= {("link", node.port, plan.switch_netns) for node in plan.nodes}
    made |= {("link", node.control_port, plan.control_netns) for node in plan.nodes}
    assert len(netns) == 4 and made == {each for each in noted if each[0] != "subnet"}
    taken = [IPv4Network(each["network"]) for each in journal.entries if each["kind"] == "subnet"]
    for node in plan.nodes:
        own = (IPv4Address(node.data_address), IPv4Address(node.control_address))
        assert [any(address in each for each in taken) for address in own] == [True, True]


def test_names_of_runs_have_64_bits() -> None:
    run = new_id()
    assert len(bytes.fromhex(run)) == 8 and run != new_id()
    plan, _ = plan_topology(run, [NodeSpec("server", "server", "server", 0, 0)], [])
    for name in (plan.switch_netns, plan.control_netns, plan.nodes[0].netns):
        assert len(bytes.fromhex(name.split("-")[1])) == 8, name


def test_a_file_left_of_a_namespace_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run can be killed between the end of its namespace and that of its name."""
    monkeypatch.setattr(namespaces, "NAMED", tmp_path)
    (tmp_path / "nw-1-switch").touch()
    entry = {"kind": "link", "name": "port0", "alias": "nw 1", "netns": "nw-1-switch"}
    assert clean_link(entry) == []
