"""Pausing nodes that are containers: also one whose process cannot be frozen at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from standing import Standing, left_of

from testbed.errors import MachineError
from testbed.fabric.docker import objects as module

pytestmark = pytest.mark.docker

Stand = Callable[[], Standing]
CGROUPS = Path("/sys/fs/cgroup/blkio/docker")
READ_BPS = 1 << 20
READ = (
    "import mmap, os, sys; open('/tmp/reading', 'w').close(); file = os.open(sys.executable, os.O_RDONLY | os.O_DIRECT); "
    "os.readv(file, [mmap.mmap(-1, {} << 20)])"
)
"""Reads so many MiB past the page cache: such a process takes no signal, and is not frozen, before it has them."""


def held_by_its_disk(stand: Stand, seconds: int) -> tuple[Standing, Path]:
    """A fabric whose ``worker-0`` waits for a slow disk for so long, and what makes the disk slow."""
    if not CGROUPS.is_dir():
        pytest.skip("only control groups of version 1 slow a disk for a container by this file")
    made = stand()
    folder = CGROUPS / str(made.fabric.objects.containers()["worker-0"].id)
    disk = Path("/var/lib/docker").stat().st_dev
    throttle = folder / "blkio.throttle.read_bps_device"
    try:
        throttle.write_text(f"{os.major(disk)}:{os.minor(disk)} {READ_BPS}")
    except OSError as error:
        pytest.skip(f"what the engine's images are on cannot be slowed: {error}")
    made.fabric.objects.containers()["worker-0"].exec_run(
        ["python", "-c", READ.format(seconds)], detach=True
    )
    deadline = time.monotonic() + 30
    while not waits_long(folder / "cgroup.procs"):
        assert time.monotonic() < deadline, "no process waited for the disk"
    return made, throttle


def waits_long(processes: Path) -> bool:
    """Whether the reader waits for a disk whenever we look at it during half a second."""
    waiting = processes.read_text().split()
    for _ in range(10):
        waiting = [pid for pid in waiting if _reads(pid) and _waits(pid)]
        time.sleep(0.05)
    return bool(waiting)


def _reads(pid: str) -> bool:
    """Others are slowed, too, while they are loaded, but never for long."""
    try:
        command = Path("/proc", pid, "cmdline").read_text()
    except OSError:
        return False
    return "O_DIRECT" in command and Path("/proc", pid, "root/tmp/reading").exists()


def _waits(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "D"
    except OSError:
        return False


def test_a_paused_container_is_removed_too(stand: Stand) -> None:
    made = stand()
    made.fabric.pause("worker-0")
    assert made.fabric.objects.containers()["worker-0"].status == "paused"
    made.fabric.destroy()
    assert left_of(made.id) == []


def test_a_container_that_waits_for_its_disk_is_paused_when_it_has_what_it_waits_for(
    stand: Stand,
) -> None:
    made, _ = held_by_its_disk(stand, 5)
    asked: list[float] = []
    pause = made.fabric.objects.client.api.pause
    made.fabric.objects.client.api.pause = lambda name: (
        asked.append(time.monotonic()),
        pause(name),
    )
    made.fabric.pause("worker-0")
    assert len(asked) > 1
    assert made.fabric.objects.containers()["worker-0"].status == "paused"


def test_a_container_that_never_freezes_is_an_error_that_says_why(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FREEZE_S", 1.0)
    made, throttle = held_by_its_disk(stand, 20)
    with pytest.raises(
        MachineError, match=r"worker-0 could not be paused in 1 s: .* waits for a disk"
    ):
        made.fabric.pause("worker-0")
    assert made.fabric.objects.containers()["worker-0"].status == "running"
    throttle.write_text(f"{throttle.read_text().split()[0]} 0")
