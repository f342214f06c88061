"""The lock files: exact versions of all that is installed, with the hashes of their files. `make lock` writes them.

pip takes nothing else then, wherever it finds it.
"""

from __future__ import annotations

import re

from testbed.setup.paths import ROOT

FOLDER = ROOT / "locks"
PACKAGES = FOLDER / "packages.txt"
"""Of ``.venv``, for every Python."""
IMAGE = FOLDER / "image.txt"
"""Of the images, for their Python."""
TORCH_CPU, TORCH_GPU = FOLDER / "torch-cpu.txt", FOLDER / "torch-gpu.txt"
"""PyTorch's builds; the second with the packages that it alone needs."""

EXACTLY = ["--require-hashes", "--no-deps"]
"""For pip: the lock files name everything, and nothing else is to be found out."""


def entries(text: str) -> list[str]:
    """The entries of a lock file, each with its hashes."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return re.findall(r"^\S.*(?:\n .*)*", "\n".join(lines), re.M)


def name_of(entry: str) -> str:
    """The package of an entry or a requirement, as indices spell it."""
    name = re.split(r"[^A-Za-z0-9._-]", entry, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()
