"""Saying what is about to be done to this machine, and asking whether it may be, where somebody is there to answer."""

from __future__ import annotations

import os
import sys

from testbed.errors import MachineError
from testbed.setup import engine, own_engine, packages
from testbed.setup.command import have, log
from testbed.setup.packages import Need

STOP = "make setup-stop"


def ask(needs: tuple[Need, ...], *, yes: bool, with_engine: bool) -> None:
    """Say what root's setup will install and start, and ask. Raises MachineError where the answer is no.

    Without a terminal, with ``yes``, and where ``CI`` is set, nobody is asked: it is said, and done.
    """
    lines = intended(needs, with_engine=with_engine)
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
        raise MachineError(
            "nothing was installed or started",
            fix="Install and start by yourself what is listed; without an engine: --fabric netns or sim",
        )


def intended(needs: tuple[Need, ...], *, with_engine: bool) -> list[str]:
    """What setup would do to this machine beyond the checkout, a sentence each."""
    lacks_engine = with_engine and engine.lacking()
    wanted = packages.missing((*needs, *packages.ENGINE) if lacks_engine else needs)
    lines = []
    if wanted and have("apt-get"):
        lines.append(f"installs with apt-get: {' '.join(packages.names(wanted))}")
    if lacks_engine and engine.version() is None:
        lines += _of_the_engine()
    return lines


def _of_the_engine() -> list[str]:
    if own_engine.is_managed():
        return [
            "starts Docker's service as this host has configured it: by default that turns on IP forwarding, sets the "
            "policy of forwarded packets to DROP, and adds rules to the filters",
            f"`{STOP}` stops it, and restores forwarding and filters as they are now",
        ]
    return [
        f"starts a Docker engine (dockerd {' '.join(own_engine.flags())}; log: {own_engine.LOG}): "
        f"{own_engine.description()}; containers that others start in it have no network but the host's",
        f"`{STOP}` stops it, and restores what it changed",
    ]
