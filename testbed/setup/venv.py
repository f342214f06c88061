"""The virtual environment ``.venv``: the package (editable), its dependencies and the developers' tools."""

from __future__ import annotations

import sys
import tomllib
from typing import Any

from testbed.setup import content, locks, packages
from testbed.setup.command import run, step
from testbed.setup.paths import ROOT, VENV, VENV_PYTHON
from testbed.setup.torch_build import install_torch


def project() -> dict[str, Any]:
    """``pyproject.toml``, read."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def stamp() -> content.Stamp:
    """What the environment is made from: the package's own description, lock files and the Python it was made with."""
    described = project()
    wanted = [described["project"], described["build-system"]]
    made_from = content.of(repr(wanted), locks.FOLDER, sys.version, str(ROOT))
    return content.Stamp(VENV / ".made-from", made_from)


def current() -> bool:
    """Whether the environment is there and was made from what the checkout says now."""
    return VENV_PYTHON.exists() and stamp().fresh()


def ensure() -> None:
    """Make the environment, or bring it up to date. Quick when nothing changed."""
    if current():
        return
    packages.install(packages.PYTHON)
    if not VENV_PYTHON.exists():
        with step("creating .venv"):
            run([sys.executable, "-m", "venv", str(VENV)])
    with step("installing PyTorch into .venv"):
        install_torch([str(VENV_PYTHON), "-m", "pip", "install"])
    with step("installing narrows and its tools into .venv"):
        pip = [str(VENV_PYTHON), "-m", "pip", "install", "-q"]
        run([*pip, *locks.EXACTLY, "-r", str(locks.PACKAGES)])
        # What builds it was among them: an environment of pip's own for that would take whatever there is.
        run([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)])
    stamp().write()
