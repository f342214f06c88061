"""``python -m testbed.guest.fill DISK FOLDER TAG``: load an image of this host's engine onto a disk image.

A second engine does it, with its data on the mounted disk. Mounts and network are in namespaces of this process, and
the engine dies with it: nothing stays, whatever happens, and the first engine is not disturbed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.guest.engine import OPTIONS
from testbed.links.namespaces import leave_for_new
from testbed.process import NEW_MOUNTS, die_with, make_private, unmount, unshare
from testbed.setup.command import CommandFailed, answer, run

_WAIT_S = 60.0


def main(disk: Path, folder: Path, tag: str) -> None:
    """Mount ``disk`` below ``folder``, and have an engine load ``tag`` there. Raises CommandFailed."""
    die_with(os.getppid())
    unshare(NEW_MOUNTS)
    leave_for_new()  # an engine without a default bridge would take off the other one's
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
    places = [
        "--data-root",
        str(data),
        "--exec-root",
        f"{folder}/exec",
        "--pidfile",
        f"{folder}/pid",
    ]
    owner, log = os.getpid(), folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["dockerd", *places, "--host", socket, *OPTIONS],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: die_with(owner),  # noqa: PLW1509
        )
    try:
        deadline = time.monotonic() + _WAIT_S
        while answer(["docker", "--host", socket, "version"]) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise CommandFailed(["dockerd"], log.read_text(errors="replace"))
            time.sleep(0.1)
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
