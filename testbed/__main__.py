"""``python -m testbed`` is the ``testbed`` command."""

from __future__ import annotations

import sys

from testbed.errors import missing


def main() -> None:
    """Run the command; where a library is missing, say so in a sentence."""
    try:
        from testbed.cli import main as command
    except ModuleNotFoundError as error:
        sys.exit(missing(error))
    command()


if __name__ == "__main__":
    main()
