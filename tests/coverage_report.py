"""Which modules the suite runs, in all processes that it starts: branches, by coverage.py.

coverage.py itself starts in every process: nodes, agents and commands are processes of their own, which pytest's plugin
would not see.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "coverage"
ENOUGH = 50.0
"""Per cent of a module's lines and branches."""


def prepare() -> None:
    """Have what is started from now on measured."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    FOLDER.chmod(0o777)  # nodes of other users write there, too
    os.environ["COVERAGE_FILE"] = str(FOLDER / "data")


def report() -> int:
    """Write ``build/coverage/`` (HTML, JSON), print the share and what is wrong with the list; 1 if something is."""
    for arguments in (
        ["combine", "-q"],
        ["html", "-q", "-d", str(FOLDER / "html")],
        ["json", "-q", "-o", str(FOLDER / "coverage.json")],
    ):
        subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, check=True)
    found = json.loads((FOLDER / "coverage.json").read_text())
    shares = {name: file["summary"]["percent_covered"] for name, file in found["files"].items()}
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["narrows"]["uncovered"]
    wrong = complaints(shares, listed)
    print(
        f"{found['totals']['percent_covered']:.1f} % of lines and branches are run; {len(listed)} modules are listed as hardly run"
    )
    print("\n".join(wrong))
    return 1 if wrong else 0


def complaints(shares: Mapping[str, float], listed: Collection[str]) -> list[str]:
    """What is wrong with the list of modules that are hardly run, a sentence each. ``shares``: per cent by file."""
    hardly = {name for name, share in shares.items() if share < ENOUGH}
    return [
        *(f"{name}: {shares[name]:.0f} % is run: test it" for name in sorted(hardly - set(listed))),
        *(
            f"{name}: enough is run: take it off the list"
            for name in sorted(set(listed) & shares.keys() - hardly)
        ),
        *(
            f"{name}: there is no such module: take it off the list"
            for name in sorted(set(listed) - shares.keys())
        ),
    ]
