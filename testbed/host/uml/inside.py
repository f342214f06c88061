"""Process 1 of the guest: runs the order, leaves the outcome, switches off. Order and outcome pass
through files in a folder that host and guest both see.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from testbed.errors import MachineError, NarrowsError
from testbed.host.uml import docker_engine
from testbed.process import BIND, mount, users_environment

ORDER, OUTCOME = "order.json", "outcome.json"
OUTPUT, ERRORS = "output", "errors"
"""Files of the command's standard output and standard error, as they come."""
STOP = "stop-"
"""``stop-15`` asks that the command be sent signal 15."""

_OWN_TO_THE_HOST = {"DOCKER_HOST", "LD_PRELOAD", "NARROWS_STATE", "XDG_RUNTIME_DIR"}
"""Variables that name what only the host has."""


INSIDE = "NARROWS_GUEST"
"""Set for a ``testbed`` that runs in a guest."""
_START_S = 600.0
"""How long a run's nodes may take to start on the guest's one slow processor."""


def environment() -> dict[str, str]:
    """This process's variables, without those of the host alone or that no user has set."""
    own = users_environment().items()
    return {name: value for name, value in own if name not in _OWN_TO_THE_HOST}


def slower() -> dict[str, str]:
    """The same, for a ``testbed`` that is to be patient."""
    return environment() | {"NARROWS_START_S": f"{_START_S:g}", INSIDE: "1"}


@dataclass(frozen=True, slots=True)
class GuestOrder:
    """A command for the guest. It reads the host's files and writes to ``writable`` alone."""

    command: list[str]
    writable: list[Path] = field(default_factory=list)
    """Folders of the host in which what the command writes stays; absolute, and there already."""
    docker: bool = False
    """True if a Docker engine is to run in the guest."""
    cwd: Path = field(default_factory=Path.cwd)
    environment: dict[str, str] = field(default_factory=environment)

    def write(self, folder: Path) -> None:
        """Leave it for the guest."""
        paths = {"cwd": str(self.cwd), "writable": [str(path) for path in self.writable]}
        (folder / ORDER).write_text(json.dumps(asdict(self) | paths))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Take what the host left."""
        values = json.loads((folder / ORDER).read_text())
        writable = [Path(path) for path in values.pop("writable")]
        return cls(**{**values, "writable": writable, "cwd": Path(values["cwd"])})


@dataclass(frozen=True, slots=True)
class GuestOutcome:
    """The command's exit status (128 + n: killed by signal n), or why there was none."""

    status: int
    problem: str = ""

    def write(self, folder: Path) -> None:
        """Leave it for the host; all of it or nothing."""
        draft = folder / f"{OUTCOME}.draft"
        draft.write_text(json.dumps(asdict(self)))
        draft.rename(folder / OUTCOME)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """None where the guest left nothing."""
        path = folder / OUTCOME
        return cls(**json.loads(path.read_text())) if path.exists() else None


HOST = Path("/run/host")
"""Where ``init.sh`` puts the host's file system."""

_LOOK_MS = 250
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _UP = 0x8913, 0x8914, 1
_POWER_OFF = 0x4321FEDC
_SIGNAL_OFFSET = 128
_CONGESTION = Path("kernel/net/ipv4")


def main(folder: Path) -> None:
    """Do everything, and power off whatever happens: else the kernel would panic."""
    try:
        outcome = _carry_out(GuestOrder.read(folder), folder)
    except NarrowsError as error:
        outcome = GuestOutcome(error.exit_code, str(error))
    except BaseException:
        outcome = GuestOutcome(3, traceback.format_exc())
    try:
        outcome.write(folder)
    except BaseException:
        traceback.print_exc()
    finally:
        os.sync()
        ctypes.CDLL(None).reboot(_POWER_OFF)


def _carry_out(order: GuestOrder, folder: Path) -> GuestOutcome:
    _loopback_up()
    _load_congestion_controls()
    for path in order.writable:
        _show(path)
    if not order.cwd.exists():
        _show(order.cwd)
    if order.docker:
        docker_engine.start()
    return _await(_start(order, folder), folder)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for request, flags in ((_SIOCGIFFLAGS, 0), (_SIOCSIFFLAGS, _UP)):
            fcntl.ioctl(any_socket, request, struct.pack("16sH14x", b"lo", flags))


def _load_congestion_controls() -> None:
    """Load them so that they can be seen: the kernel lists what is loaded."""
    modules = Path("/lib/modules", os.uname().release, _CONGESTION).glob("tcp_*.ko")
    names = [path.stem for path in modules if not path.stem.endswith("_diag")]
    subprocess.run(["modprobe", "-a", *names], check=False)
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    allowed.write_text(Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text())


def _show(path: Path) -> None:
    """Let a folder of the host be written to."""
    path.mkdir(parents=True, exist_ok=True)
    mount(f"{HOST}{path}", path, None, BIND)


def _start(order: GuestOrder, folder: Path) -> subprocess.Popen[bytes]:
    """Start the command; every write is on the host at once, not half a minute later."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_DSYNC
    output, errors = (os.open(folder / name, flags) for name in (OUTPUT, ERRORS))
    try:
        return subprocess.Popen(
            order.command,
            cwd=order.cwd,
            env=order.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )
    except OSError as error:
        raise MachineError(
            f"the guest cannot run {order.command[0]!r}: {error.strerror}",
            fix="It sees the host's file system; give the program's full path",
        ) from error
    finally:
        os.close(output)
        os.close(errors)


def _await(process: subprocess.Popen[bytes], folder: Path) -> GuestOutcome:
    """Until the command has ended. Orphans are this process's to bury."""
    ended = select.poll()
    ended.register(os.pidfd_open(process.pid), select.POLLIN)
    while True:
        ended.poll(_LOOK_MS)
        _pass_signals_on(process.pid, folder)
        with suppress(ChildProcessError):
            while (buried := os.waitpid(-1, os.WNOHANG))[0]:
                if buried[0] == process.pid:
                    code = os.waitstatus_to_exitcode(buried[1])
                    return GuestOutcome(code if code >= 0 else _SIGNAL_OFFSET - code)


def _pass_signals_on(pid: int, folder: Path) -> None:
    for request in folder.glob(f"{STOP}*"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.Signals(int(request.name.removeprefix(STOP))))
        request.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
