"""Stands between the host's process and the guest's kernel: when the former dies, nothing of the
latter stays.

The kernel has helpers of its own, which would outlive it if it were killed. So the keeper, which
nobody signals, waits for the kernel's end or for news on its standard input, and in the latter case
ends them all.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

from testbed.process import die_with

END = b"."
"""Byte that the host writes to have the guest ended; a dead host writes nothing."""


def main(folder: str, command: list[str]) -> int:
    """Run ``command`` to its end; removes ``folder`` without a host. Returns the exit code."""
    keeper = os.getpid()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: die_with(keeper),  # noqa: PLW1509
    )
    waiting = select.poll()
    waiting.register(os.pidfd_open(process.pid), select.POLLIN)
    waiting.register(sys.stdin, select.POLLIN)
    ended = sys.stdin.fileno() in dict(waiting.poll())
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if ended and os.read(sys.stdin.fileno(), 1) != END:
        shutil.rmtree(folder, ignore_errors=True)
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
