"""``python -m testbed.host.uml [--memory GIB] [--limit SECONDS] [--writable DIR] [--docker] --
COMMAND…``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from testbed.errors import NarrowsError
from testbed.host.uml.guest import GIB, run
from testbed.host.uml.inside import GuestOrder


def main(arguments: list[str]) -> int:
    """Run one command in a guest; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.host.uml", description="Run one command in a guest kernel."
    )
    parser.add_argument("--memory", type=float, metavar="GIB", help="what the guest may use")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="end it after so long")
    parser.add_argument(
        "--writable",
        type=lambda text: Path(text).resolve(),
        action="append",
        default=[],
        metavar="DIR",
        help="what the command writes there stays on the host; may be repeated",
    )
    parser.add_argument("--docker", action="store_true", help="start a Docker engine first")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    order = GuestOrder(given.command, writable=given.writable, docker=given.docker)
    try:
        return run(
            order,
            size=int(given.memory * GIB) if given.memory else None,
            limit_s=given.limit,
        )
    except NarrowsError as error:
        sys.stderr.write(f"testbed: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
