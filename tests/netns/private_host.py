"""A host of a test's own: a network with nothing but loopback, and a ``/run`` that nobody else sees.

What a run does to its host is done to this one, so that before and after can be compared exactly whatever
else is going on, and several tests can do so side by side.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from typing import Any

from command_rig import command_line
from unprivileged import as_user

from testbed.process import environment

_MAKE = """
for path in $(awk '$2 ~ "^/run/" { print $2 }' /proc/mounts | tac); do umount --lazy $path; done
mount -t tmpfs tmpfs /run && mkdir -m 1777 /run/lock /run/tmp && ip link set lo up && echo made && exec sleep infinity
"""
_LOOK = """
ip -j link; ip -j address; ip -j rule; ip -j route show table all; ip -j neighbour
tc -j qdisc; for device in $(ls /proc/sys/net/ipv4/conf); do tc -j class show dev $device 2>&1 | grep -v Cannot; done
find /run/netns /run/narrows .local/state/narrows -type f ! -name planning.lock ! -name capacity.json 2>/dev/null
find /run/tmp -mindepth 1
awk '$2 ~ "^/run/" { print $2 }' /proc/mounts | while read path; do [ ! -e $path ] || echo $path; done
"""
"""Mounts below the ``/run`` that was there before cannot be reached any more, but come and go with the machine's."""
_MARK = "NARROWS_TRIAL"


class PrivateHost:
    """Runs commands; ``processes`` are all that came of them, wherever they are by now."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        command = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", _MAKE]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "made\n"

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command here; its process id is the command's own."""
        enter = ["nsenter", f"--target={self._holder.pid}", "--net", "--mount"]
        return subprocess.Popen(
            [*enter, f"--wd={self.folder}", *command],
            env=environment(**{_MARK: self.mark, "TMPDIR": "/run/tmp"}),
            stdout=subprocess.PIPE,
            text=True,
            **{"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, **options},
        )

    def testbed(self, *arguments: str, user: bool = False) -> subprocess.Popen[str]:
        """Start a ``testbed`` command here; as a user without any right, in whose home."""
        command = [sys.executable, "-m", "testbed", *arguments]
        return self.start(*(as_user(self.folder, *command) if user else command))

    def network(self) -> Path:
        """Which network this host's is."""
        return Path(f"/proc/{self._holder.pid}/ns/net").readlink()

    @property
    def run(self) -> Path:
        """This host's ``/run``, as it is seen from outside."""
        return Path(f"/proc/{self._holder.pid}/root/run")

    def state(self) -> str:
        """Links, addresses, routes, queueing, namespaces, mounts, journals and temporary files, as text."""
        looked = self.start("sh", "-c", _LOOK)
        return looked.communicate(timeout=30)[0]

    def processes(self, module: str = "") -> list[int]:
        """Processes that came of a command here and still run; with ``module`` in their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    ours = f"{_MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
                    if ours and module.encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
        return found

    def settle(self, before: str, timeout_s: float = 30.0) -> str:
        """What differs from ``before``, in words; what is ending gets some time for it."""
        give_up = time.monotonic() + timeout_s
        while time.monotonic() < give_up:
            if not self.processes() and self.state() == before:
                return ""
            time.sleep(0.1)
        running = [command_line(pid) for pid in self.processes()]
        changed = unified_diff(before.splitlines(), self.state().splitlines(), lineterm="", n=0)
        return "\n".join([f"still running: {running}", *changed])

    def close(self) -> None:
        """Have everything here end."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._holder.kill()
        self._holder.wait()
        if self._holder.stdout is not None:
            self._holder.stdout.close()
