"""``python -m analysis RUN… --out DIR``: table, figures and report of some runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.report import write_report
from testbed.errors import NarrowsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; the paths that were written go to standard output."""
    parser = argparse.ArgumentParser(prog="python -m analysis", description=__doc__)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run or comparison directory"
    )
    parser.add_argument("--out", type=Path, default=Path("report"), metavar="DIR")
    options = parser.parse_args(arguments)
    try:
        paths = write_report(options.runs, options.out)
    except NarrowsError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write("".join(f"{path}\n" for path in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
