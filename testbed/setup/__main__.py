"""``python3 -m testbed.setup [all|environment|engine|images|guest|capabilities]``: what ``make`` calls."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

from testbed.errors import NarrowsError
from testbed.guest import disk
from testbed.guest.installed import GUEST
from testbed.setup import engine, images, kernels, packages, venv


def everything() -> None:
    """Environment, engine, images and programs. Quick when all of it is there."""
    venv.ensure()
    kernels.ensure()
    packages.offer(packages.TRAFFIC, "cross traffic and recording traces")
    packages.offer(GUEST, "--guest (delay, loss and the like on kernels without netem)")
    engine.ensure()
    images.ensure()


def guest() -> None:
    """The disk of guests that have a Docker engine."""
    everything()
    disk.ensure()


def capabilities() -> None:
    """Write which marked tests must run here, for NARROWS_REQUIRE."""
    can = ["root"] if os.geteuid() == 0 else []
    if engine.version() is not None:
        can.append("docker")
    if not packages.missing(GUEST):
        can += ["guest", "netem"]
    sys.stdout.write(",".join(can) + "\n")


COMMANDS: dict[str, Callable[[], None]] = {
    "all": everything,
    "environment": venv.ensure,
    "engine": engine.ensure,
    "images": everything,
    "guest": guest,
    "capabilities": capabilities,
}


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    name = arguments[0] if arguments else "all"
    if len(arguments) > 1 or name not in COMMANDS:
        sys.stderr.write(f"python3 -m testbed.setup [{'|'.join(COMMANDS)}]\n")
        return 2
    try:
        COMMANDS[name]()
    except NarrowsError as error:
        sys.stderr.write(f"setup: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
