"""Starting a program at an instant: ``python -m testbed.session.launch --parent PID --at-ns N -- COMMAND…``.

An interpreter takes a while to start, and longer on a busy machine; so it is started early, waits for the
instant on the host's monotonic clock, and becomes the command. It dies with its parent thread.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Sequence

from testbed.process import die_with, module_command


def launch_command(command: Sequence[str], at_ns: int = 0) -> list[str]:
    """The command line that becomes ``command`` at ``at_ns`` (0: at once), for a child of this process."""
    options = ["--parent", str(os.getpid()), "--at-ns", str(at_ns)]
    return module_command("testbed.session.launch", *options, "--", *command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Wait and become the command."""
    parser = argparse.ArgumentParser(prog="testbed.session.launch")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--at-ns", type=int, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with(options.parent)
    while (left := options.at_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
