"""Pausing nodes that are containers, of which a process cannot be frozen at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from standing import Standing

from testbed.errors import MachineError
from testbed.fabric.docker import engine as module

BLKIO = Path("/sys/fs/cgroup/blkio")
pytestmark = [pytest.mark.docker]
if not BLKIO.is_dir():  # with version 2 the engine itself waits until everything is frozen
    pytestmark += [
        pytest.mark.optional,
        pytest.mark.skip("only control groups of version 1 slow a disk for a container"),
    ]
CGROUPS = BLKIO / "docker"
READ_BPS = 1 << 20
READ = (
    "import mmap, os, sys; open('/tmp/reading', 'w').close(); file = os.open(sys.executable, os.O_RDONLY | os.O_DIRECT); "
    "os.readv(file, [mmap.mmap(-1, {} << 20)])"
)
"""Reads so many MiB past the page cache: such a process takes no signal, and is not frozen, before it has them."""


@pytest.fixture
def paused_later(plain: Standing) -> Iterator[Standing]:
    yield plain
    plain.fabric.resume("worker-0")


def held_by_its_disk(made: Standing, seconds: int) -> Path:
    """Have ``worker-0`` wait for a slow disk for so long; returns what makes the disk slow."""
    folder = CGROUPS / str(made.fabric.objects.containers()["worker-0"].id)
    disk = Path("/var/lib/docker").stat().st_dev
    throttle = folder / "blkio.throttle.read_bps_device"
    try:
        throttle.write_text(f"{os.major(disk)}:{os.minor(disk)} {READ_BPS}")
    except OSError as error:
        pytest.skip(f"what the engine's images are on cannot be slowed: {error}")
    made.inside("worker-0", "rm", "-f", "/tmp/reading")
    made.fabric.objects.containers()["worker-0"].exec_run(
        ["python", "-c", READ.format(seconds)], detach=True
    )
    deadline = time.monotonic() + 30
    while not waits_long(folder / "cgroup.procs"):
        assert time.monotonic() < deadline, "no process waited for the disk"
    return throttle


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


def test_a_container_that_waits_for_its_disk_is_paused_when_it_has_what_it_waits_for(
    paused_later: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = paused_later.fabric
    throttle = held_by_its_disk(paused_later, 5)
    asked: list[float] = []
    pause = fabric.objects.client.api.pause
    monkeypatch.setattr(
        fabric.objects.client.api,
        "pause",
        lambda name: (asked.append(time.monotonic()), pause(name)),
    )
    fabric.pause("worker-0")
    assert len(asked) > 1
    assert fabric.objects.containers()["worker-0"].status == "paused"
    without(throttle)


def test_a_container_that_never_freezes_is_an_error_that_says_why(
    paused_later: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FREEZE_S", 1.0)
    fabric = paused_later.fabric
    throttle = held_by_its_disk(paused_later, 20)
    with pytest.raises(
        MachineError, match=r"worker-0 could not be paused in 1 s: .* waits for a disk"
    ):
        fabric.pause("worker-0")
    assert fabric.objects.containers()["worker-0"].status == "running"
    without(throttle)


def without(throttle: Path) -> None:
    """Let the disk be as quick as it is."""
    throttle.write_text(f"{throttle.read_text().split()[0]} 0")
