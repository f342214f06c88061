"""``python3 -m testbed.setup [--yes] [all|environment|engine|images|guest|stop|capabilities]``: what ``make`` calls."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

from testbed.errors import MachineError, NarrowsError
from testbed.guest import disk
from testbed.guest.installed import GUEST
from testbed.setup import consent, engine, images, kernels, own_engine, packages, venv
from testbed.setup.command import answer


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


def stop() -> None:
    """Stop the engine that was started here, and restore what it changed. Raises MachineError while containers run in it."""
    running = answer(["docker", "ps", "--quiet"])
    if own_engine.STATE.exists() and running:
        raise MachineError(
            f"{len(running.split())} containers run in the engine",
            fix="End their runs first, or `testbed clean`; `docker ps` lists them",
        )
    done = own_engine.stop()
    sys.stdout.write(
        "".join(f"{line}\n" for line in done or ["no engine was started by `make setup`"])
    )


COMMANDS: dict[str, Callable[[], None]] = {
    "all": everything,
    "environment": venv.ensure,
    "engine": engine.ensure,
    "images": everything,
    "guest": guest,
    "stop": stop,
    "capabilities": capabilities,
}

YES = "--yes"
_OF_THE_SYSTEM = (*packages.PYTHON, *packages.TRAFFIC, *GUEST)
_ASKED: dict[str, tuple[tuple[packages.Need, ...], bool]] = {
    "environment": (packages.PYTHON, False),
    "engine": ((), True),
    **dict.fromkeys(("all", "images", "guest"), (_OF_THE_SYSTEM, True)),
}
"""By command: packages that it may install, and whether it starts an engine."""


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    yes, given = YES in arguments, [each for each in arguments if each != YES]
    name = given[0] if given else "all"
    if len(given) > 1 or name not in COMMANDS:
        sys.stderr.write(f"python3 -m testbed.setup [{YES}] [{'|'.join(COMMANDS)}]\n")
        return 2
    try:
        if name in _ASKED:
            needs, with_engine = _ASKED[name]
            consent.ask(
                () if venv.current() and not with_engine else needs,
                yes=yes,
                with_engine=with_engine,
            )
        COMMANDS[name]()
    except NarrowsError as error:
        sys.stderr.write(f"setup: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
