"""``python -m testbed`` is the ``testbed`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; where a library is missing, say so in a sentence."""
    try:
        from testbed.cli import main as command
    except ModuleNotFoundError as error:
        sys.exit(missing(error))
    command()


def missing(error: ModuleNotFoundError) -> int:
    """Say which library is not installed; the exit code. A module of our own is another matter: raised again."""
    if str(error.name).partition(".")[0] in ("testbed", "analysis"):
        raise error
    sys.stderr.write(f"testbed: the library {error.name!r} is not installed. Run `make setup`\n")
    return 3


if __name__ == "__main__":
    main()
