"""The setup commands that ``make`` calls.

``python3 -m testbed.host [--yes] [all|environment|engine|images|guest|observe|stop|capabilities]``

They say what is about to be done to this machine, and ask whether it may be, where somebody is
there to answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from testbed.errors import MachineError, NarrowsError
from testbed.host import docker_engine as engine_module
from testbed.host import images, packages, paths, prometheus
from testbed.host.packages import Need, answer, have, log
from testbed.host.uml import docker_engine
from testbed.host.uml.guest import GUEST
from testbed.process import guard

STOP = "testbed setup stop"


def ask(lines: Sequence[str], *, yes: bool, fix: str) -> None:
    """Say what root's setup will do, ``lines``, and ask. Raises MachineError, with ``fix``, where
    the answer is no.

    Without a terminal, with ``yes``, and where ``CI`` is set, nobody is asked: it is said, and
    done.
    """
    if os.geteuid() != 0 or not lines:
        return
    log.info("═══ this changes the machine:")
    for line in lines:
        log.info("  • %s", line)
    if yes or os.environ.get("CI") or not sys.stdin.isatty():
        log.info("═══ nobody is asked (--yes, CI, or no terminal): going on")
        return
    sys.stderr.write("Go on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise MachineError("nothing was installed or started", fix=fix)


def intended(needs: tuple[Need, ...], *, with_engine: bool) -> list[str]:
    """Return what setup would do to this machine beyond the checkout, a sentence each."""
    lacks_engine = with_engine and engine_module.lacking()
    wanted = packages.missing((*needs, *packages.ENGINE) if lacks_engine else needs)
    lines = []
    if wanted and have("apt-get"):
        lines.append(f"installs with apt-get: {' '.join(packages.names(wanted))}")
    if lacks_engine and engine_module.version() is None:
        lines += _of_the_engine()
    return lines


def _of_the_engine() -> list[str]:
    if engine_module.is_managed():
        return [
            "starts Docker's service as this host has configured it: by default that turns on IP "
            "forwarding, sets the policy of forwarded packets to DROP, and adds rules to the "
            "filters",
            f"`{STOP}` stops it, and restores forwarding and filters as they are now",
        ]
    return [
        f"starts a Docker engine (dockerd {' '.join(engine_module.flags())}; log: "
        f"{engine_module.LOG}): {engine_module.description()}; containers that others "
        "start in it have no network but the host's",
        f"`{STOP}` stops it, and restores what it changed",
    ]


def everything() -> None:
    """Environment and programs; beside them engine and images. Quick when all of it is there."""
    paths.create()
    packages.side_by_side(_programs, _containers)


def _programs() -> None:
    paths.ensure()
    packages.offer(packages.TRAFFIC, "cross traffic and recording traces")
    packages.offer(GUEST, "--guest (delay, loss and the like on kernels without netem)")
    paths.ensure_kernels()


def _containers() -> None:
    engine_module.ensure()
    images.ensure()


def guest() -> None:
    """The disk of guests that have a Docker engine."""
    everything()
    docker_engine.ensure()


def observe() -> None:
    """Prometheus for observed runs; writes where it is."""
    sys.stdout.write(f"{prometheus.ensure()}\n")


def capabilities() -> None:
    """Write which marked tests must run here, for NARROWS_REQUIRE."""
    can = ["root"] if os.geteuid() == 0 else []
    if engine_module.version() is not None:
        can.append("docker")
    if not packages.missing(GUEST):
        can += ["guest", "netem"]
    sys.stdout.write(",".join(can) + "\n")


def stop() -> None:
    """Stop the engine that was started here, and restore what it changed. Raises MachineError while
    containers run in it."""
    running = answer(["docker", "ps", "--quiet"])
    if engine_module.STATE.exists() and running:
        raise MachineError(
            f"{len(running.split())} containers run in the engine",
            fix="End their runs first, or `testbed clean`; `docker ps` lists them",
        )
    done = engine_module.stop()
    sys.stdout.write(
        "".join(f"{line}\n" for line in done or ["no engine was started by `testbed setup`"])
    )


COMMANDS: dict[str, Callable[[], None]] = {
    "all": everything,
    "environment": paths.ensure,
    "engine": engine_module.ensure,
    "images": everything,
    "guest": guest,
    "observe": observe,
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
"""Packages that a command may install, and whether it starts an engine, keyed by command."""
_BY_YOURSELF = (
    "Install and start by yourself what is listed; without an engine: --fabric netns or sim"
)
_INSTEAD = {"observe": "Install Prometheus by yourself, so that `prometheus` is on the path"}
"""Advice for where the answer is no, keyed by command."""


def changes(name: str) -> list[str]:
    """Return what a command would do to this machine beyond the checkout, a sentence each."""
    if name == "observe":
        return prometheus.intended()
    if name not in _ASKED:
        return []
    needs, with_engine = _ASKED[name]
    complete = paths.current() and not with_engine
    return intended(() if complete else needs, with_engine=with_engine)


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit code."""
    guard()
    packages.announce()
    yes, given = YES in arguments, [each for each in arguments if each != YES]
    name = given[0] if given else "all"
    if len(given) > 1 or name not in COMMANDS:
        sys.stderr.write(f"python3 -m testbed.host [{YES}] [{'|'.join(COMMANDS)}]\n")
        return 2
    try:
        ask(changes(name), yes=yes, fix=_INSTEAD.get(name, _BY_YOURSELF))
        COMMANDS[name]()
    except NarrowsError as error:
        sys.stderr.write(f"setup: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
