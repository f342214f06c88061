"""A Docker engine inside the guest, and the disk it is given: an ext4 image that holds the node
image. Guests share it; what they change goes to a file of their own.

``python -m testbed.host.uml.docker_engine DISK FOLDER TAG`` fills a disk, by a second engine on
this host whose data are on it: some ten seconds, where loading inside the guest takes minutes. Its
mounts and network are in namespaces of this process, with which it dies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import MachineError
from testbed.host import docker_engine, images
from testbed.host.packages import CommandFailed, run, step
from testbed.host.paths import BUILD, cache
from testbed.process import (
    NEW_MOUNTS,
    NEW_NETWORK,
    die_with,
    environment,
    make_private,
    module_command,
    mount,
    unmount,
    unshare,
)

_SUFFIX = ".ext4"
_BYTES = 16 * 2**30
"""Sparse: it takes up what the node image takes."""


def ensure() -> Path:
    """The disk with the current node image; only making it takes the host's engine.

    Raises MachineError where it is not there and cannot be made.
    """
    tag = images.tags().node
    return _existing(tag) or _make(tag)


def _name(tag: str) -> str:
    """Return the disk's name, from the image's tag: no engine has to be asked."""
    return f"docker-{tag.rpartition(':')[2]}{_SUFFIX}"


def _existing(tag: str) -> Path | None:
    folders = (BUILD / "guest", cache("guest"))
    paths = (folder / _name(tag) for folder in folders)
    return next((path for path in paths if os.access(path, os.R_OK)), None)


def _make(tag: str) -> Path:
    if os.geteuid() != 0:
        raise MachineError(
            "the guest's disk with the node image has not been made, and making it needs root",
            fix=f"Run `sudo {sys.executable} -P -m testbed setup guest` once, or use --fabric "
            "netns, which needs no disk",
        )
    images.require()
    final = cache("guest") / _name(tag)
    with (
        step("making the guest's disk with the node image"),
        tempfile.TemporaryDirectory(prefix="narrows-disk-", dir=final.parent) as name,
    ):
        draft = Path(name) / "disk"
        draft.touch()
        os.truncate(draft, _BYTES)
        run(["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(draft)])
        _fill(draft, Path(name), tag)
        for older in final.parent.glob(f"docker-*{_SUFFIX}"):
            older.unlink(missing_ok=True)  # a guest that still uses it keeps it
        draft.rename(final)
    return final


def _fill(disk: Path, folder: Path, tag: str) -> None:
    """In a process of its own, whose mounts end with it."""
    command = module_command("testbed.host.uml.docker_engine", str(disk), str(folder), tag)
    done = subprocess.run(
        command,
        check=False,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise CommandFailed(command, done.stdout.decode(errors="replace"))


_DISK = "/dev/ubda"
_DATA = Path("/run/docker-data")
_LOG = Path("/run/dockerd.log")
_CGROUPS = Path("/sys/fs/cgroup")
_SETTINGS = Path("/etc/docker")
"""The host's engine's settings: not meant for this one, and its key is secret."""
_WAIT_S = 120.0


def start() -> None:
    """Start ``dockerd`` and wait until it answers. Raises MachineError."""
    _mount_control_groups()
    if _SETTINGS.is_dir():
        mount("settings", _SETTINGS, "tmpfs", 0, "mode=755")
    _DATA.mkdir()
    mount(_DISK, _DATA, "ext4", 0)
    with _LOG.open("wb") as log:
        process = subprocess.Popen(
            ["dockerd", f"--data-root={_DATA}", *docker_engine.ISOLATED],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        docker_engine.wait_for_engine(process, _LOG, _WAIT_S)
    except CommandFailed as error:
        raise MachineError(
            f"the guest's Docker engine did not start: {error.output}", fix="Use --fabric netns"
        ) from None


def _mount_control_groups() -> None:
    """One hierarchy per controller, which every version of the engine takes."""
    mount("cgroups", _CGROUPS, "tmpfs", 0, "mode=755")
    lines = Path("/proc/cgroups").read_text().splitlines()[1:]
    for name in (fields[0] for fields in map(str.split, lines) if fields[3] == "1"):
        folder = _CGROUPS / name
        folder.mkdir()
        mount(name, folder, "cgroup", 0, name)


def main(disk: Path, folder: Path, tag: str) -> None:
    """Mount ``disk``, and have an engine load ``tag`` onto it. Raises CommandFailed."""
    die_with(os.getppid())
    # an engine without a default bridge would take off the other one's
    unshare(NEW_MOUNTS | NEW_NETWORK)
    make_private()
    data = folder / "data"
    data.mkdir()
    run(["mount", "-o", "loop", str(disk), str(data)])
    with _engine(data, folder) as socket:
        _copy(tag, socket)
    unmount(data)
    os.sync()


@contextmanager
def _engine(data: Path, folder: Path) -> Iterator[str]:
    """An engine that answers at the address yielded."""
    socket = f"unix://{folder}/socket"
    folders = [f"--data-root={data}", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
    owner, log = os.getpid(), folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["dockerd", *folders, "--host", socket, *docker_engine.ISOLATED],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: die_with(owner),  # noqa: PLW1509
        )
    try:
        docker_engine.wait_for_engine(process, log, address=socket)
        yield socket
    finally:
        process.terminate()
        process.wait()


def _copy(tag: str, socket: str) -> None:
    """From engine to engine, without a file between them."""
    with subprocess.Popen(["docker", "save", tag], stdout=subprocess.PIPE) as saved:
        load = ["docker", "--host", socket, "load", "-q"]
        loaded = subprocess.run(load, check=False, stdin=saved.stdout, capture_output=True)
    if saved.returncode or loaded.returncode:
        raise CommandFailed(load, loaded.stderr.decode(errors="replace"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
