"""Wheels for the image's Python, fetched by the host's pip: images are built without any network."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from testbed.setup import content
from testbed.setup.base_image import Recipe
from testbed.setup.command import run
from testbed.setup.locks import EXACTLY, IMAGE, TORCH_CPU, TORCH_GPU, entries, name_of
from testbed.setup.paths import BUILD, VENV_PYTHON
from testbed.setup.torch_build import has_gpu, install_torch
from testbed.setup.venv import project

WHEELS = BUILD / "wheels"
_HOST_ONLY = {"docker", "matplotlib"}
"""Dependencies that no node imports: they drive the engine and draw figures."""


def requirements() -> list[str]:
    """What nodes need of the project's dependencies."""
    listed: list[str] = project()["project"]["dependencies"]
    return [line for line in listed if name_of(line) not in _HOST_ONLY]


def made_from(recipe: Recipe) -> str:
    """Content hash of everything that decides which wheels are fetched."""
    target = f"{recipe.python} {recipe.glibc} {platform.machine()} gpu={has_gpu()}"
    return content.of(IMAGE, TORCH_CPU, TORCH_GPU, target)


def fetch(recipe: Recipe) -> Path:
    """Fill ``build/wheels`` and return it. It holds ``requirements.txt`` for the installation too."""
    stamp = content.Stamp(WHEELS / ".made-from", made_from(recipe))
    if stamp.fresh():
        return WHEELS
    shutil.rmtree(WHEELS, ignore_errors=True)
    pip = [str(VENV_PYTHON), "-m", "pip", "download", "--dest", str(WHEELS), *_target(recipe)]
    torch = install_torch(pip)
    run([*pip, "-q", *EXACTLY, "-r", str(IMAGE)])
    # With their hashes: what is installed in the image is compared with them once more.
    listed = [*entries(torch.read_text()), *entries(IMAGE.read_text())]
    kept = [entry for entry in listed if name_of(entry) != "pip"]  # it runs from its archive
    (WHEELS / "requirements.txt").write_text("\n".join([*kept, ""]))
    stamp.write()
    return WHEELS


def _target(recipe: Recipe) -> list[str]:
    """The image's Python and C library for pip, whatever the host's are."""
    machine = platform.machine()
    newest = int(recipe.glibc.split(".")[1])
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(5, newest + 1)]
    tags += [f"manylinux2014_{machine}", f"linux_{machine}"]
    platforms = [argument for tag in tags for argument in ("--platform", tag)]
    python = ["--implementation", "cp", "--python-version", recipe.python]
    return ["--only-binary=:all:", *python, *platforms]
