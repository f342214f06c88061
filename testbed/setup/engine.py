"""The Docker engine and Compose: found, judged, started where none answers."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import time
from pathlib import Path

from testbed.errors import MachineError
from testbed.setup import own_engine, packages
from testbed.setup.command import CommandFailed, answer, have, step

OLDEST_ENGINE = (20, 10)
OLDEST_COMPOSE = (1, 29)
JOIN_GROUP = "sudo usermod -aG docker $USER, then log in again"
_SOCKET = Path("/var/run/docker.sock")
_START_SECONDS = 60.0


def version() -> str | None:
    """The version of the engine that answers, or None."""
    return answer(["docker", "version", "--format", "{{.Server.Version}}"])


def numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``20.10.24+dfsg1`` is ``(20, 10, 24)``."""
    match = re.search(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


@functools.cache
def compose_command() -> tuple[str, ...] | None:
    """How Compose is called here: ``docker compose``, else ``docker-compose``, else None."""
    if compose_version_of(("docker", "compose")):
        return ("docker", "compose")
    return ("docker-compose",) if have("docker-compose") else None


def compose_version_of(command: tuple[str, ...]) -> str | None:
    """The version of Compose that ``command`` runs, or None."""
    return answer([*command, "version", "--short"])


def refused() -> bool:
    """Whether an engine is there but this user may not speak to it."""
    return _SOCKET.exists() and not os.access(_SOCKET, os.R_OK | os.W_OK)


def require() -> None:
    """Raise MachineError with the fix unless an engine and Compose answer."""
    if version() is None:
        raise _unreachable()
    if compose_command() is None:
        raise MachineError("Docker Compose is missing", fix="Run `make setup`")


def lacking() -> bool:
    """Whether no engine answers, or Compose is missing."""
    return version() is None or compose_command() is None


def ensure() -> None:
    """Have an engine that answers, and Compose: install and start what is missing."""
    if lacking():
        if refused():
            raise _unreachable()
        answered, before = version() is not None, own_engine.host()
        packages.install(packages.ENGINE)
        compose_command.cache_clear()
        if version() is None:
            _start(before)
        elif not answered:  # the package has had its service started
            own_engine.note_service(before)
            own_engine.note_up()
    require()


def _unreachable() -> MachineError:
    if refused():
        return MachineError(
            f"the Docker engine is there, but this user may not use it ({_SOCKET})", fix=JOIN_GROUP
        )
    return MachineError("no Docker engine answers", fix="Run `make setup` as root")


def _start(before: own_engine.Host) -> None:
    if os.geteuid() != 0:
        raise MachineError(
            "no Docker engine answers", fix="Start it: `sudo systemctl start docker`"
        )
    with step("starting the Docker engine"):
        if own_engine.is_managed():
            own_engine.note_service(before)
            own_engine.start_service()
            _wait(None)
        else:
            _wait(own_engine.start())
        own_engine.note_up()


def _wait(process: subprocess.Popen[bytes] | None) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if version() is not None:
            return
        if process is not None and process.poll() is not None:
            break
        time.sleep(0.3)
    tail = own_engine.LOG.read_text(errors="replace")[-2000:] if process is not None else ""
    raise CommandFailed(
        ["dockerd"], tail or "it does not answer", fix=f"Its log is {own_engine.LOG}"
    )
