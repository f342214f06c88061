"""Data that goes from node to node through memory is seen: copied, or mapped by both."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from netns_rig import Rig

from testbed.fabric.enter import command_in
from testbed.job.copies import Copied, CopyWatch
from testbed.job.memory import MemoryWatch
from testbed.process import environment

COPY = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
pid, at, size, times, call = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
room = ctypes.create_string_buffer(b"given", size)
here = struct.pack("4Q", ctypes.addressof(room), size // 2, ctypes.addressof(room) + size // 2, size - size // 2)
there = struct.pack("2Q", at, size)
for number in range(times):
    copied = getattr(libc, call)(pid, here, ctypes.c_ulong(2), there, ctypes.c_ulong(1), ctypes.c_ulong(0))
    assert copied == size, (copied, ctypes.get_errno())
    if number == 0:
        print(room.raw[:5].decode(), flush=True)
"""
HOLD = """
import ctypes, sys
room = ctypes.create_string_buffer(b"hello", 1 << 20)
print(ctypes.addressof(room), flush=True)
sys.stdin.read()
"""
MAP = """
import mmap, os, sys
flags, size = os.O_RDWR | os.O_CREAT, int(sys.argv[2])
opened = os.open(sys.argv[1], flags, 0o666)
os.ftruncate(opened, size)
kind = mmap.ACCESS_READ if sys.argv[3] == "read" else mmap.ACCESS_WRITE
held = mmap.mmap(opened, size, access=kind)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def nodes(rig: Rig) -> dict[str, str]:
    return {name: place.nic.netns or "" for name, place in rig.places.items()}


@contextmanager
def process(
    netns: str, *command: str, watch: CopyWatch | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A program in a node, which has said something, and ends with the ``with`` block."""
    given: Sequence[int] = ()
    if watch is None:
        made = _started(command_in(netns, os.getpid(), command), given)
    else:
        with watch.channel() as channel:
            made = _started(command_in(netns, os.getpid(), command, channel), (channel,))
    with made:
        try:
            yield made
        finally:
            with suppress(ProcessLookupError):
                made.kill()


def _started(command: Sequence[str], descriptors: Sequence[int]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        pass_fds=descriptors,
    )


def said(one: subprocess.Popen[str]) -> str:
    assert one.stdout is not None
    return one.stdout.readline().strip()


def holder(netns: str) -> tuple[str, ...]:
    return netns, sys.executable, "-c", HOLD


def test_copies_between_nodes_are_counted_and_go_on_unharmed(nodes: dict[str, str]) -> None:
    watch = CopyWatch(nodes)
    size, times = 100_001, 7
    with process(*holder(nodes["server"])) as far, process(*holder(nodes["worker-0"])) as near:
        far_at, near_at = said(far), said(near)
        for call, pid, at, many, held in (
            ("process_vm_readv", far.pid, far_at, times, "hello"),
            ("process_vm_writev", far.pid, far_at, 1, "given"),
            ("process_vm_readv", near.pid, near_at, 3, "hello"),
        ):
            copy = (sys.executable, "-c", COPY, str(pid), at, str(size), str(many), call)
            with process(nodes["worker-0"], *copy, watch=watch) as copying:
                assert said(copying) == held
                assert copying.wait(20) == 0
    found = sorted(watch.end(), key=lambda copied: copied.call)
    assert found == [
        Copied("worker-0", "server", "process_vm_readv", times, times * size),
        Copied("worker-0", "server", "process_vm_writev", 1, size),
    ]
    assert not watch.unwatched


def test_a_call_that_fails_fails_as_it_would_and_nobody_waits_for_ever(
    nodes: dict[str, str],
) -> None:
    watch = CopyWatch(nodes)
    bad = """
import ctypes, struct
libc, room = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(8)
piece = struct.pack("2Q", ctypes.addressof(room), 8)
for pid, at in ((1 << 22, piece), (1, ctypes.c_void_p(-8)), (1, None)):
    print(libc.process_vm_readv(pid, at, 1, piece, 1, 0), ctypes.get_errno())
"""
    with process(nodes["server"], sys.executable, "-c", bad, watch=watch) as one:
        said_now = [said(one) for _ in range(3)]
        assert one.wait(20) == 0
    assert watch.end() == []
    assert said_now == ["-1 3", "-1 14", "-1 14"]  # no such process, bad addresses


def test_a_killed_caller_is_no_trouble_to_the_others(nodes: dict[str, str]) -> None:
    watch = CopyWatch(nodes)
    with process(*holder(nodes["server"])) as far:
        address = said(far)
        copy = (sys.executable, "-c", COPY, str(far.pid), address)
        with process(
            nodes["worker-0"], *copy, "1000000", "9999999", "process_vm_readv", watch=watch
        ) as doomed:
            assert said(doomed) == "hello"
            time.sleep(0.5)
        with process(nodes["worker-0"], *copy, "100", "1", "process_vm_readv", watch=watch) as one:
            assert said(one) == "hello"
    (found,) = watch.end()
    assert found.calls > 1 and found.bytes == 100 + 1_000_000 * (found.calls - 1)


def test_pages_that_both_have_mapped_are_found(nodes: dict[str, str], tmp_path: Path) -> None:
    name = f"/dev/shm/narrows-{os.getpid()}"
    path, on_disk = Path(name), tmp_path / "table"
    for file in (path, on_disk):
        file.touch()
        file.chmod(0o666)
    tmp_path.chmod(0o755)

    def mapping(node: str, file: Path, how: str) -> tuple[str, ...]:
        return nodes[node], sys.executable, "-c", MAP, str(file), str(1 << 20), how

    try:
        found = {}
        for case, first, second in (
            ("written", mapping("server", path, "write"), mapping("worker-0", path, "read")),
            ("read", mapping("server", path, "read"), mapping("worker-0", path, "read")),
            ("one node", mapping("server", path, "write"), mapping("server", path, "write")),
        ):
            watch = MemoryWatch(nodes, look_s=3600)
            with process(*first) as one, process(*second) as other:
                assert (said(one), said(other)) == ("held", "held")
                watch.look()
            found[case] = watch.end()
            assert not watch.unwatched
    finally:
        path.unlink()
    (shared,) = found.pop("written")
    assert {shared.node, shared.other} == set(nodes)
    assert (shared.name, shared.bytes) == (name, 1 << 20)
    assert not any(found.values())
