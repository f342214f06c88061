"""``python -m testbed`` is the ``testbed`` command, ready for signals before it imports more."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal imports others first
import os
import sys
from types import FrameType

from testbed import ASIDE

_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 15: "SIGTERM"}
_PYTHONS_OWN = ("PYTHONINSPECT", "PYTHONWARNINGS")
"""Variables by which Python would ask for input at the end, or make errors of warnings."""


def main() -> None:
    """Run the command; where a library is missing, say so in a sentence."""
    for number in _SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, _end)
    _begin_anew()
    try:
        from testbed.cli import leave
        from testbed.cli import main as command
        from testbed.errors import Interrupted
        from testbed.runner.signals import interruptible
    except ModuleNotFoundError as error:
        from testbed.errors import missing

        sys.exit(missing(error))
    raised: list[Interrupted] = []
    try:
        with interruptible(raised):
            command()
    except Exception:
        if not raised:
            raise
        leave(str(raised[0]), raised[0].exit_code)


def _end(number: int, _frame: FrameType | None) -> None:
    """End at once: nothing has been begun, and an exception would come out of some import."""
    os.write(2, f"testbed: interrupted by {_SIGNALS[number]}\n".encode())
    os._exit(1)


def _begin_anew() -> None:
    """Have Python start again without these variables; it has read them before any line of ours."""
    given = [name for name in _PYTHONS_OWN if os.environ.get(name)]
    for name in given:
        os.environ[f"{ASIDE}{name}"] = os.environ.pop(name)
    if given and sys.executable:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    main()
