"""Files that come with the package, content hashes, lock files, the virtual environment, kernels.

Of PyTorch the first build that pip can satisfy is taken: the CPU build where pip looks anyway, that
of PyTorch's own index, the CUDA build; with a GPU, the CUDA build first. The version is that of
``constraints.txt``, and only files whose hashes are in ``locks/`` are installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from testbed.errors import IN_CHECKOUT, MachineError
from testbed.host import packages
from testbed.host.packages import CommandFailed, log, run, step
from testbed.process import PACKAGE
from testbed.user_files import home

ROOT = PACKAGE.parent if IN_CHECKOUT else PACKAGE / "data"
"""The checkout; else the folder of the wheel with the same ``images/``, ``compose/``, ``locks/``,
``scenarios/`` and ``examples/``."""

BUILD = ROOT / "build"
"""Folder of a checkout with everything that is made on the way and may be deleted at any time."""

VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python" if IN_CHECKOUT else Path(sys.executable)
MODULE = (str(VENV_PYTHON), "-P", "-m")
"""The beginning of a command that runs a module of the environment, taking nothing from the working
directory: root may call `testbed doctor --fix` in a folder of somebody else's."""


def shipped(*parts: str) -> Path:
    """Return a file or folder that comes with the package. Raises MachineError where it does not,
    as in the images."""
    path = ROOT.joinpath(*parts)
    if not path.exists():
        raise MachineError(
            f"{'/'.join(parts)} is not there: it comes with the package",
            fix="Install the package again",
        )
    return path


def cache(name: str) -> Path:
    """Return a folder, made if need be, for what is made once: in the checkout's ``build/``, else
    in the user's cache directory."""
    if IN_CHECKOUT and os.access(ROOT, os.W_OK):
        folder = BUILD / name
    else:
        own = home()
        users = os.environ.get("XDG_CACHE_HOME") or (own and own / ".cache")
        if not users:
            raise MachineError(
                "this user has no home in which what is made once could be kept",
                fix="Set HOME, or XDG_CACHE_HOME, to a folder that you may write to",
            )
        folder = Path(users) / "narrows" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_IGNORED = ("__pycache__", ".pyc")
_DIGITS = 12


def of(*parts: str | bytes | Path) -> str:
    """Twelve hexadecimal digits for strings, bytes, and files or whole folders with their names."""
    digest = hashlib.sha256()
    for part in parts:
        for chunk in _chunks(part):
            digest.update(len(chunk).to_bytes(8, "little"))
            digest.update(chunk)
    return digest.hexdigest()[:_DIGITS]


def files(folder: Path) -> list[Path]:
    """Return the files below ``folder``, in a fixed order. Compiled Python is left out, and of the
    package what a wheel has besides its code: images are the same from a wheel and a checkout."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    beside = PACKAGE / "data" if folder == PACKAGE else None
    return sorted(
        path
        for path in paths
        if not any(mark in str(path) for mark in _IGNORED) and beside not in path.parents
    )


def _chunks(part: str | bytes | Path) -> Iterable[bytes]:
    if isinstance(part, str):
        yield part.encode()
    elif isinstance(part, bytes):
        yield part
    elif part.is_dir():
        for path in files(part):
            yield str(path.relative_to(part)).encode()
            yield path.read_bytes()
    else:
        yield part.read_bytes()


class Stamp:
    """A small file that says from which content something was made."""

    def __init__(self, path: Path, content: str) -> None:
        self.path, self.content = path, content

    def fresh(self) -> bool:
        """Return whether the thing was last made from this very content."""
        return self.path.is_file() and self.path.read_text() == self.content

    def write(self) -> None:
        """Say that it now is."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.content)


FOLDER = ROOT / "locks"
PACKAGES = FOLDER / "packages.txt"
"""Lock file of ``.venv``, for every Python."""
IMAGE = FOLDER / "image.txt"
"""Lock file of the images, for their Python."""
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


CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def has_gpu() -> bool:
    """Return whether the kernel drives an NVIDIA device."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()


def pinned_version() -> str:
    """The version in ``constraints.txt``, e.g. ``2.13.0``."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if name.strip() == "torch":
            return version.strip()
    raise MachineError("constraints.txt pins no version of torch", fix="Add `torch==<version>`")


def attempts(*, gpu: bool) -> list[tuple[Path, list[str]]]:
    """Lock files, best first, each with further arguments for pip."""
    if gpu:
        return [(TORCH_GPU, []), (TORCH_CPU, [])]
    return [(TORCH_CPU, []), (TORCH_CPU, ["--extra-index-url", CPU_INDEX]), (TORCH_GPU, [])]


def install_torch(pip: list[str]) -> Path:
    """Run ``pip`` with the first attempt that works; returns its lock file."""
    tries = attempts(gpu=has_gpu())
    for number, (lock, more) in enumerate(tries, start=1):
        try:
            run([*pip, "-q", *EXACTLY, "-r", str(lock), *more])
            break
        except CommandFailed:
            if number == len(tries):
                raise
            log.info("  not found with `%s`, trying the next source", " ".join([lock.name, *more]))
    return lock


def project() -> dict[str, Any]:
    """Read ``pyproject.toml`` of the checkout."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def stamp() -> Stamp:
    """Return the stamp of the environment: package's description, lock files, this Python."""
    described = project()
    wanted = [described["project"], described["build-system"]]
    made_from = of(repr(wanted), FOLDER, sys.version, str(ROOT))
    return Stamp(VENV / ".made-from", made_from)


def current() -> bool:
    """Return whether the environment is there and was made from what the checkout says now. Of an
    installed package it is the one that this runs in."""
    return not IN_CHECKOUT or (VENV_PYTHON.exists() and stamp().fresh())


def create() -> None:
    """Make the environment with nothing but pip in it, unless it is there."""
    if not VENV_PYTHON.exists():
        packages.install(packages.PYTHON)
        with step("creating .venv"):
            run([sys.executable, "-P", "-m", "venv", str(VENV)])


def ensure() -> None:
    """Make the environment, or bring it up to date. Quick when nothing changed."""
    if current():
        return
    create()
    pip = [*MODULE, "pip", "install", "--no-compile"]  # each module is when it is first needed
    with step("installing narrows, its tools and PyTorch into .venv"):
        _install_locked(pip)
        # What builds it was among them: an environment of pip's own for that would take whatever
        # there is.
        run([*pip, "-q", "--no-deps", "--no-build-isolation", "-e", str(ROOT)])
    stamp().write()


def _install_locked(pip: list[str]) -> None:
    """PyTorch, and beside it all other packages in two parts: pip takes one after the other."""
    locked = entries(PACKAGES.read_text())
    with TemporaryDirectory() as folder:
        parts = [Path(folder, "even.txt"), Path(folder, "odd.txt")]
        for first, part in enumerate(parts):
            part.write_text("\n".join(locked[first :: len(parts)]))
        others = [partial(run, [*pip, "-q", *EXACTLY, "-r", str(part)]) for part in parts]
        packages.side_by_side(partial(install_torch, pip), *others)


_SOURCES = PACKAGE / "compress" / "kernels"


def kernels_stamp() -> Stamp:
    """Return the stamp of what the kernels are compiled from: the loops, and the environment."""
    environment = stamp().content if IN_CHECKOUT else f"{sys.prefix} {sys.version}"
    made_from = of(environment, *sorted(_SOURCES.glob("*.py")))
    folder = VENV if IN_CHECKOUT else cache("kernels")
    return Stamp(folder / ".kernels-compiled-from", made_from)


def ensure_kernels() -> None:
    """Compile what has changed since the last time, and the modules that ``ensure`` left as they
    are: users who may not write to the environment would compile them in every process."""
    compiled = kernels_stamp()
    if compiled.fresh():
        return
    with step("compiling kernels"):
        run([*MODULE, "testbed.compress.kernels.compilation"])
    if IN_CHECKOUT:
        with step("compiling Python's modules"), suppress(CommandFailed):  # of newer Pythons, some
            run([*MODULE, "compileall", "-qq", str(VENV / "lib")])
    compiled.write()
