"""Starting this package's own modules as processes, wherever the package happens to be imported from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import testbed

PACKAGE = Path(testbed.__file__).resolve().parent


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def environment(**extra: str) -> dict[str, str]:
    """This process's environment, in which the package is found from any directory."""
    known = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(PACKAGE.parent), *([known] if known else [])])
    return {**os.environ, "PYTHONPATH": path, **extra}
