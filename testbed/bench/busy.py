"""A processor kept busy for a while: ``python -m testbed.bench.busy SECONDS --parent PID``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from testbed.process import die_with


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute until the time is over or the parent is gone."""
    parser = argparse.ArgumentParser(prog="testbed.bench.busy")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--parent", type=int, required=True, help="process to die with")
    options = parser.parse_args(arguments)
    die_with(options.parent)
    stop = time.monotonic() + options.seconds
    while time.monotonic() < stop:
        for _ in range(100_000):
            pass


if __name__ == "__main__":
    main()
