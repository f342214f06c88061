"""The Docker engine and Compose: found, judged, and started where none answers.

Where an init system manages Docker, the distribution's service is started as the host has
configured it: by default it turns on forwarding and adds filters. Elsewhere the engine is our own
process, with flags by which it leaves both alone as far as that is safe: the project's containers
need bridges without a way out, and nothing else.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.errors import MachineError
from testbed.host import packages
from testbed.host.packages import CommandFailed, answer, have, run, step
from testbed.journal import lives, start_of_boot, start_time
from testbed.process import within

_FLAGS = ("--bridge=none", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
"""Options of our own engine: no bridge of its own, no forwarding, no translated addresses."""
ISOLATED = (*_FLAGS, "--iptables=false")
"""Options of an engine whose networks lead nowhere, and that leaves the filters alone."""
STATE = Path("/run/narrows-engine.json")
LOG = Path("/var/log/narrows-dockerd.log")
_SETTINGS = (
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/default/forwarding",
)
_TABLES = ("filter", "nat")
_TOOLS = ("iptables", "ip6tables")
_BRIDGE = "docker0"
_DOCKERS = re.compile(rf"\bDOCKER|\b({_BRIDGE}|br-[0-9a-f]{{12}})\b")
"""Pattern of Docker's rules: they name its chains and its bridges."""
_END_S, _LOOK_S = 60.0, 0.1


@dataclass(frozen=True, slots=True)
class EngineHost:
    """Settings of a host that an engine may change: those below /proc/sys by path, policies of
    FORWARD by program, whether there are rules and a bridge of Docker's."""

    settings: dict[str, str]
    policies: dict[str, str]
    rules: bool
    bridge: bool


def flags() -> tuple[str, ...]:
    """Those of an engine that is started now.

    On a host that forwards packets only Docker's filters keep containers from the outside (their
    networks are internal, but have a gateway). On others nothing gets out, and the filters are left
    alone, too.
    """
    return _FLAGS if _forwards() else ISOLATED


def description() -> str:
    """Return what an engine that is started now changes, as a part of a sentence."""
    if _forwards():
        return (
            "this host forwards packets already, so it adds Docker's rules to the filters, for its "
            "own networks"
        )
    return "it changes neither forwarding nor filters"


def _forwards() -> bool:
    return Path("/proc/sys/net/ipv4/ip_forward").read_text().strip() != "0"


def is_managed() -> bool:
    """Return whether an init system is there that manages services."""
    return Path("/run/systemd/system").is_dir()


def host() -> EngineHost:
    """Return the present settings of this host."""
    read = {name: Path("/proc/sys", name) for name in _SETTINGS}
    rules = [line for tool in _TOOLS for table in _TABLES for line in _rules(tool, table)]
    return EngineHost(
        {name: path.read_text().strip() for name, path in read.items() if path.exists()},
        {tool: policy for tool in _TOOLS if (policy := _policy(tool)) is not None},
        any("DOCKER" in line for line in rules),
        Path("/sys/class/net", _BRIDGE).exists(),
    )


def start(
    options: Sequence[str] = (),
    given: Sequence[str] | None = None,
    *,
    state: Path = STATE,
    log: Path = LOG,
) -> subprocess.Popen[bytes]:
    """Start an engine of our own, and write down what the host was like. ``options``: where it has
    its files; ``given``: in place of ``flags()``."""
    before, mounted = host(), False
    if " cgroup" not in Path("/proc/mounts").read_text(errors="replace") and have("cgroupfs-mount"):
        run(["cgroupfs-mount"])
        mounted = True
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["dockerd", *(flags() if given is None else given), *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PATH": path},
        )
    _write(state, process.pid, before, mounted=mounted)
    return process


def start_service() -> None:
    """Have the init system start Docker's service. Raises CommandFailed."""
    run(["systemctl", "start", "docker"], fix="See `journalctl -u docker`")


def note_service(before: EngineHost, *, state: Path = STATE) -> None:
    """Write down that the service runs because of us, and what the host was like before."""
    _write(state, None, before, mounted=False)


def note_up(*, state: Path = STATE) -> None:
    """Write down what the host is like now that the engine answers."""
    noted = _read(state)
    if noted is not None:
        _save(state, {**noted, "up": asdict(host())})


def stop(*, state: Path = STATE) -> list[str]:
    """Stop the engine that was started here, and restore what it changed; returns what was done, in
    words.

    What somebody else has changed since the engine was up is left as it is found. Raises
    MachineError where the engine does not end.
    """
    noted = _read(state)
    if noted is None:
        return []
    up, done = EngineHost(**noted["up"]) if "up" in noted else host(), []
    if noted["pid"] is None:
        run(["systemctl", "stop", "docker.socket", "docker"])
        done.append("stopped the service docker")
    elif lives(noted["pid"], noted["start"]):
        _end(noted["pid"], noted["start"])
        done.append(f"stopped the engine, process {noted['pid']}")
    done += _restore(EngineHost(**noted["before"]), up)
    if noted["mounted"] and answer(["cgroupfs-umount"]) is not None:
        done.append("unmounted control groups")
    state.unlink()
    return done


def _end(pid: int, start: str) -> None:
    os.kill(pid, signal.SIGTERM)
    if not within(_END_S, _LOOK_S, lambda: not lives(pid, start)):
        raise MachineError(f"the engine, process {pid}, does not end", fix=f"See {LOG}")


def _read(state: Path) -> dict[str, Any] | None:
    """Return the engine's noted state; None if there is none of this boot of the machine. Raises
    MachineError where it is root's, and this user is not."""
    try:
        noted: dict[str, Any] = json.loads(state.read_text())
    except PermissionError:
        raise MachineError(
            "the Docker engine was started by root",
            fix=f"Stop it with `sudo {sys.executable} -P -m testbed setup stop`",
        ) from None
    except (OSError, ValueError):
        return None
    return noted if noted.get("boot") == start_of_boot() else None


def _write(state: Path, pid: int | None, before: EngineHost, *, mounted: bool) -> None:
    began = None if pid is None else start_time(pid)
    if (
        earlier := _read(state)
    ) is not None:  # of an engine that ended by itself, and restored nothing
        before = EngineHost(**earlier["before"])
    noted = {"boot": start_of_boot(), "pid": pid, "start": began, "mounted": mounted}
    _save(state, {**noted, "before": asdict(before)})


def _save(state: Path, noted: dict[str, Any]) -> None:
    descriptor = os.open(state, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(noted, file)


def _restore(before: EngineHost, up: EngineHost) -> list[str]:
    """Undo the engine's changes: what differs from ``before`` as it did while the engine was
    ``up``.

    Returns what was done, a phrase each.
    """
    now, done = host(), []
    for name, value in before.settings.items():
        if now.settings.get(name) != value and now.settings.get(name) == up.settings.get(name):
            Path("/proc/sys", name).write_text(f"{value}\n")
            done.append(f"set {name.replace('/', '.')} to {value} again")
    if not before.rules:
        done += [f"removed Docker's rules ({tool})" for tool in _TOOLS if _remove_rules(tool)]
    for tool, policy in before.policies.items():
        if now.policies.get(tool) != policy and now.policies.get(tool) == up.policies.get(tool):
            run([tool, "-P", "FORWARD", policy])
            done.append(f"set the policy of FORWARD to {policy} again ({tool})")
    if not before.bridge and now.bridge:
        run(["ip", "link", "delete", _BRIDGE])
        done.append(f"removed {_BRIDGE}")
    return done


def _policy(tool: str) -> str | None:
    match = re.search(
        r"^-P FORWARD (\w+)$", answer([tool, "-w", "-S", "FORWARD"]) or "", re.MULTILINE
    )
    return match[1] if match else None


def _rules(tool: str, table: str) -> list[str]:
    return (answer([tool, "-w", "-t", table, "-S"]) or "").splitlines()


def _remove_rules(tool: str) -> bool:
    """Rules that lead to Docker's chains, or speak of its bridge, then the chains."""
    removed = False
    for table in _TABLES:
        rules = _rules(tool, table)
        ours = [line for line in rules if _DOCKERS.search(line)]
        chains = [line.split()[1] for line in ours if line.startswith("-N ")]
        for line in ours:
            if line.startswith("-A ") and line.split()[1] not in chains:
                with suppress(MachineError):
                    run([tool, "-w", "-t", table, "-D", *shlex.split(line)[1:]])
        for option in ("-F", "-X"):
            for chain in chains:
                run([tool, "-w", "-t", table, option, chain])
        removed = removed or bool(ours)
    return removed


OLDEST_ENGINE = (20, 10)
OLDEST_COMPOSE = (1, 29)
JOIN_GROUP = "sudo usermod -aG docker $USER, then log in again"
_SOCKET = Path("/var/run/docker.sock")
_START_SECONDS = 60.0


def version(address: str | None = None) -> str | None:
    """The version of the engine that answers (at ``address``, if given), or None."""
    options = [] if address is None else ["--host", address]
    return answer(["docker", *options, "version", "--format", "{{.Server.Version}}"])


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
    """Return whether an engine is there but this user may not speak to it."""
    return _SOCKET.exists() and not os.access(_SOCKET, os.R_OK | os.W_OK)


def require() -> None:
    """Raise MachineError with the fix unless an engine and Compose answer."""
    if version() is None:
        raise _unreachable()
    if compose_command() is None:
        raise MachineError("Docker Compose is missing", fix="Run `testbed setup`")


def lacking() -> bool:
    """Return whether no engine answers, or Compose is missing."""
    return version() is None or compose_command() is None


def ensure() -> None:
    """Have an engine that answers, and Compose: install and start what is missing."""
    if lacking():
        if refused():
            raise _unreachable()
        answered, before = version() is not None, host()
        packages.install(packages.ENGINE)
        compose_command.cache_clear()
        if version() is None:
            _start(before)
        elif not answered:  # the package has had its service started
            note_service(before)
            note_up()
    require()


def _unreachable() -> MachineError:
    if refused():
        return MachineError(
            f"the Docker engine is there, but this user may not use it ({_SOCKET})", fix=JOIN_GROUP
        )
    return MachineError("no Docker engine answers", fix="Run `testbed setup` as root")


def _start(before: EngineHost) -> None:
    if os.geteuid() != 0:
        raise MachineError(
            "no Docker engine answers", fix="Start it: `sudo systemctl start docker`"
        )
    with step("starting the Docker engine"):
        if is_managed():
            note_service(before)
            start_service()
            wait_for_engine(None, LOG)
        else:
            wait_for_engine(start(), LOG)
        note_up()


def wait_for_engine(
    process: subprocess.Popen[bytes] | None,
    log: Path,
    seconds: float = _START_SECONDS,
    address: str | None = None,
) -> None:
    """Wait until an engine answers. Raises CommandFailed with the end of its ``log``.

    ``process``: where it was started here; ``address``: where it is not the usual one.
    """
    deadline = time.monotonic() + seconds
    while version(address) is None:
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            tail = log.read_text(errors="replace")[-2000:].strip() if process is not None else ""
            raise CommandFailed(["dockerd"], tail or "it does not answer", fix=f"Its log is {log}")
        time.sleep(0.3)
