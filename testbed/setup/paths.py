"""Where the parts of a checkout lie."""

from __future__ import annotations

import os
from pathlib import Path

from testbed.errors import MachineError

ROOT = Path(__file__).resolve().parents[2]
"""The checkout: the folder that holds ``pyproject.toml``, ``images/`` and ``compose/``."""

BUILD = ROOT / "build"
"""Everything that is made on the way and may be deleted at any time."""

VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"


def in_checkout(*parts: str) -> Path:
    """A file of the checkout. Raises MachineError where only the installed package is present."""
    path = ROOT.joinpath(*parts)
    if not path.exists():
        raise MachineError(
            f"{'/'.join(parts)} is not there: the docker fabric needs a checkout of the project",
            fix="Run from a clone, installed with `make setup`, or use --fabric netns",
        )
    return path


def cache(name: str) -> Path:
    """A folder for what is made once: in ``build/`` of a checkout that may be written to, else the user's own."""
    beside = (ROOT / "pyproject.toml").exists() and os.access(ROOT, os.W_OK)
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = (BUILD if beside else users / "narrows") / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
