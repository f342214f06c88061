"""Compiled kernels: made once here, so that the first run of all does not begin with half a minute of compiling."""

from __future__ import annotations

from testbed.setup import content, venv
from testbed.setup.command import run, step
from testbed.setup.paths import ROOT, VENV, VENV_PYTHON

_SOURCES = ROOT / "testbed" / "compress" / "kernels"


def stamp() -> content.Stamp:
    """What they are compiled from: the loops, and the environment."""
    made_from = content.of(venv.stamp().content, *sorted(_SOURCES.glob("*.py")))
    return content.Stamp(VENV / ".kernels-compiled-from", made_from)


def ensure() -> None:
    """Compile what has changed since the last time."""
    made = stamp()
    if made.fresh():
        return
    with step("compiling kernels"):
        run([str(VENV_PYTHON), "-m", "testbed.compress.kernels.warm"])
    made.write()
