"""Flower in an environment of its own: it holds typer and rich to older versions than the command line takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = (
    "-m",
    "pip",
    "install",
    "--quiet",
    "--disable-pip-version-check",
    "--retries",
    "5",
    "--timeout",
    "60",
)
UNREACHABLE = re.compile(r"from versions: none|connection broken|timed out", re.IGNORECASE)


def flower_python(folder: Path) -> Path:
    """Python of a new environment in ``folder``; what Flower does not pin is found in this one. Skips without an index."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=60)
    python, ours = folder / "bin" / "python", sysconfig.get_path("purelib")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "shown.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    done = subprocess.run(
        [str(python), *PIP, *wanted()], capture_output=True, text=True, timeout=420,
        env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}, check=False,
    )  # fmt: skip
    if done.returncode and UNREACHABLE.search(done.stderr):
        pytest.skip("no package index to take Flower from can be reached")
    assert done.returncode == 0, done.stderr
    return python


def wanted() -> list[str]:
    """What the extra ``flower`` asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [str(requirement) for requirement in project["optional-dependencies"]["flower"]]
