"""The guest's process 1 once its file system stands: run the order, leave the outcome, switch off."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from testbed.errors import MachineError, NarrowsError
from testbed.guest import engine
from testbed.guest.order import ERRORS, OUTPUT, STOP, Order, Outcome
from testbed.process import BIND, mount

HOST = Path("/run/host")
"""Where ``init.sh`` puts the host's file system."""

_LOOK_MS = 250
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _UP = 0x8913, 0x8914, 1
_POWER_OFF = 0x4321FEDC
_SIGNAL_OFFSET = 128
_CONGESTION = Path("kernel/net/ipv4")


def main(folder: Path) -> None:
    """Do everything, and power off whatever happens: if this process ended, the kernel would panic."""
    try:
        outcome = _carry_out(Order.read(folder), folder)
    except NarrowsError as error:
        outcome = Outcome(error.exit_code, str(error))
    except BaseException:
        outcome = Outcome(3, traceback.format_exc())
    try:
        outcome.write(folder)
    except BaseException:
        traceback.print_exc()
    finally:
        os.sync()
        ctypes.CDLL(None).reboot(_POWER_OFF)


def _carry_out(order: Order, folder: Path) -> Outcome:
    _loopback_up()
    _load_congestion_controls()
    for path in order.writable:
        _show(path)
    if not order.cwd.exists():
        _show(order.cwd)
    if order.docker:
        engine.start()
    return _await(_start(order, folder), folder)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for request, flags in ((_SIOCGIFFLAGS, 0), (_SIOCSIFFLAGS, _UP)):
            fcntl.ioctl(any_socket, request, struct.pack("16sH14x", b"lo", flags))


def _load_congestion_controls() -> None:
    """So that they can be seen: the kernel's list holds what is loaded. Other modules come when asked for."""
    modules = Path("/lib/modules", os.uname().release, _CONGESTION).glob("tcp_*.ko")
    names = [path.stem for path in modules if not path.stem.endswith("_diag")]
    subprocess.run(["modprobe", "-a", *names], check=False)
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    allowed.write_text(Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text())


def _show(path: Path) -> None:
    """Let a folder of the host be written to."""
    path.mkdir(parents=True, exist_ok=True)
    mount(f"{HOST}{path}", path, None, BIND)


def _start(order: Order, folder: Path) -> subprocess.Popen[bytes]:
    """Every write is on the host when it returns: the file system would keep it for half a minute."""
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


def _await(process: subprocess.Popen[bytes], folder: Path) -> Outcome:
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
                    return Outcome(code if code >= 0 else _SIGNAL_OFFSET - code)


def _pass_signals_on(pid: int, folder: Path) -> None:
    for request in folder.glob(f"{STOP}*"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.Signals(int(request.name.removeprefix(STOP))))
        request.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
