"""What a node may use: defaults from the machine, and where control groups are made, told by files in a folder."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from testbed.cgroups import Base, ControlGroup, find, make
from testbed.errors import MachineError
from testbed.topology import Limits, Machine, RequestedLimits, bound_by_rlimits, limits

GIB = 1 << 30
LAPTOP = Machine(processes=32_768, memory_bytes=16 * GIB)
HELD = Limits(processes=100, memory_bytes=GIB, tmp_bytes=1)


@pytest.mark.parametrize(
    ("nodes", "gib", "processes"),
    [(1, 14, 16_384), (2, 14, 16_384), (4, 7, 8192), (7, 4, 4681), (1000, 1, 4096)],
)
def test_by_default_a_node_has_twice_its_share(nodes: int, gib: int, processes: int) -> None:
    assert limits(RequestedLimits(), nodes, LAPTOP) == Limits(processes, gib * GIB, gib * GIB // 2)


def test_what_is_asked_for_is_had() -> None:
    assert limits(RequestedLimits(10, 3 * GIB), 4, LAPTOP) == Limits(10, 3 * GIB, 3 * GIB // 2)
    assert limits(RequestedLimits(tmp_bytes=5), 4, LAPTOP).tmp_bytes == 5


def test_this_machine_has_some() -> None:
    assert min(Machine.here().processes, Machine.here().memory_bytes) > 1000


def test_limits_of_single_processes() -> None:
    pid = os.fork()
    if pid == 0:
        bound_by_rlimits(Limits(50, 1 << 28, 1), 3, alone=True)
        found = resource.getrlimit(resource.RLIMIT_DATA), resource.getrlimit(resource.RLIMIT_NPROC)
        try:
            bytearray(1 << 29)
        except MemoryError:
            os._exit(found != ((1 << 28, 1 << 28), (150, 150)))
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


def mounts(*lines: tuple[str, Path, str, str]) -> str:
    """As ``mountinfo`` writes them: root, place, kind, options of the hierarchy."""
    return "".join(
        f"{n} 23 0:{n} {root} {at} rw,relatime shared:{n} - {kind} {kind} {options}\n"
        for n, (root, at, kind, options) in enumerate(lines, 30)
    )


def tree(folder: Path, **groups: tuple[str, str, str]) -> Path:
    """A hierarchy of version 2: by path, the members, what there is, and what is handed on."""
    for path, (members, there, on) in groups.items():
        where = folder / path.replace("__", "/").replace("top", ".")
        where.mkdir(parents=True, exist_ok=True)
        (where / "cgroup.procs").write_text(members)
        (where / "cgroup.controllers").write_text(there)
        (where / "cgroup.subtree_control").write_text(on)
        if path != "top":
            (where / "cgroup.type").write_text("domain\n")
    return folder


def test_a_runs_group_goes_with_the_last_of_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every hierarchy, and not before: others' nodes may be in it."""

    def refuse(path: Path, _: str) -> int:
        raise OSError(1, "no file of the kernel's", str(path))  # here nothing makes them

    monkeypatch.setattr(Path, "write_text", refuse)
    folders = {
        node: tuple(tmp_path / kind / "narrows-a1" / node for kind in ("pids", "memory"))
        for node in ("server", "worker-0")
    }
    for folder in (*folders["server"], *folders["worker-0"], tmp_path / "pids" / "narrows-b2"):
        folder.mkdir(parents=True)
    ControlGroup(folders["server"]).remove()
    assert not any(folder.exists() for folder in folders["server"])
    assert all(folder.exists() for folder in folders["worker-0"])
    for _ in range(2):
        ControlGroup(folders["worker-0"]).remove()
        left = sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*"))
        assert left == ["memory", "pids", "pids/narrows-b2"]


BOTH = "cpu memory pids"


def test_version_2_below_the_nearest_that_hands_on(tmp_path: Path) -> None:
    """As in a user's session of systemd: the scope has processes, and the slice above it hands on."""
    top = tree(
        tmp_path,
        top=("1\n", BOTH, BOTH),
        user=("", BOTH, BOTH),
        user__app=("", BOTH, "memory pids"),
        user__app__shell=("77\n", "memory pids", ""),
    )
    base = find(mounts(("/", top, "cgroup2", "rw")), "0::/user/app/shell\n")
    assert base == Base(2, dict.fromkeys(("pids", "memory"), top / "user/app"))
    assert str(base) == f"version 2, below {top}/user/app"
    group = make(base, "a1b2", "worker-0", HELD)
    made = top / "user/app/narrows-a1b2"
    assert group.folders == (made / "worker-0",)
    assert (made / "cgroup.subtree_control").read_text() == "+pids +memory\n"
    assert (made / "worker-0/pids.max").read_text() == "100\n"
    assert (made / "worker-0/memory.max").read_text() == f"{GIB}\n"
    group.enter(4321)
    assert (made / "worker-0/cgroup.procs").read_text() == "4321\n"


@pytest.mark.parametrize(
    ("version", "memory", "swap", "most"),
    [
        (1, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", GIB),
        (2, "memory.max", "memory.swap.max", 0),
    ],
)
def test_a_node_has_no_swap_besides_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, memory: str, swap: str, most: int
) -> None:
    """Version 1 bounds both together, version 2 swap alone; not every kernel has that file."""
    base = Base(version, dict.fromkeys(("pids", "memory"), tmp_path))
    make_folder = Path.mkdir
    assert not (make(base, "a", "without", HELD).folders[0] / swap).exists()

    def as_the_kernel(path: Path, **options: bool) -> None:
        make_folder(path, **options)
        (path / swap).write_text("max\n")

    monkeypatch.setattr(Path, "mkdir", as_the_kernel)
    (folder,) = make(base, "a", "with", HELD).folders
    assert (folder / memory).read_text() == f"{GIB}\n"
    assert (folder / swap).read_text() == f"{most}\n"


def test_version_2_an_empty_group_is_made_to_hand_on(tmp_path: Path) -> None:
    top = tree(
        tmp_path,
        top=("1\n", BOTH, ""),
        slice=("", BOTH, "cpu"),
        slice__service=("77\n", BOTH, ""),
    )
    assert (
        find(mounts(("/", top, "cgroup2", "rw")), "0::/slice/service\n").folders["pids"]
        == top / "slice"
    )
    assert (top / "slice/cgroup.subtree_control").read_text() == "+pids +memory\n"


def test_version_2_the_topmost_may_have_processes(tmp_path: Path) -> None:
    top = tree(tmp_path, top=("1\n2\n", BOTH, ""))
    assert find(mounts(("/", top, "cgroup2", "rw")), "0::/\n").folders["memory"] == top


def test_version_2_that_hands_nothing_on_is_no_place(tmp_path: Path) -> None:
    """As in a container: what looks like the topmost group is another's below, with processes."""
    top = tree(tmp_path, top=("1\n", BOTH, ""))
    (top / "cgroup.type").write_text("domain\n")
    with pytest.raises(MachineError, match="Delegate=pids memory"):
        find(mounts(("/", top, "cgroup2", "rw")), "0::/\n")
    with pytest.raises(MachineError, match="no control group"):
        find(mounts(("/", tree(tmp_path / "b", top=("", "cpu", "cpu")), "cgroup2", "rw")), "0::/\n")


def test_version_1_below_ones_own_in_every_hierarchy(tmp_path: Path) -> None:
    """In a container: only its own part of the hierarchies is mounted. Another version is mounted beside, without controllers."""
    for name in ("pids", "both", "unified"):
        (tmp_path / name / "own").mkdir(parents=True)
    text = mounts(
        ("/docker/ab", tmp_path / "pids", "cgroup", "rw,pids"),
        ("/docker/ab", tmp_path / "both", "cgroup", "rw,cpuset,memory"),
        ("/", tmp_path / "unified", "cgroup2", "rw"),
    )
    own = "8:pids:/docker/ab\n4:cpuset,memory:/docker/ab/own\n0::/docker/ab\n"
    base = find(text, own)
    assert base == Base(1, {"pids": tmp_path / "pids", "memory": tmp_path / "both/own"})
    group = make(base, "a1b2", "worker-0", HELD)
    pids, memory = group.folders
    assert (pids / "pids.max").read_text() == "100\n" and not (pids / "memory.max").exists()
    assert (memory / "memory.limit_in_bytes").read_text() == f"{GIB}\n"


def test_one_folder_for_both_where_they_are_mounted_together(tmp_path: Path) -> None:
    text = mounts(("/", tmp_path, "cgroup", "rw,memory,pids"))
    assert make(find(text, "3:memory,pids:/\n"), "a", "b", HELD).folders == (
        tmp_path / "narrows-a/b",
    )


@pytest.mark.parametrize(
    ("options", "own", "said"),
    [
        ("rw,cpu", "3:cpu:/\n", "no control groups with pids and memory"),
        ("rw,memory", "3:memory:/\n", "no control groups with pids are mounted"),
        ("rw,pids,memory", "3:memory,pids:/../elsewhere\n", "is not below"),
        ("rw,pids,memory", "3:memory,pids:/not-there\n", "this user may make no control groups in"),
    ],
)
def test_where_none_can_be_made_is_told(tmp_path: Path, options: str, own: str, said: str) -> None:
    with pytest.raises(MachineError, match=said):
        find(mounts(("/", tmp_path, "cgroup", options)), own)
