"""Compilation by numba: the decorators of loops, instead of numba's own; where compiled loops are
cached; every loop loaded before it is needed (``python -m testbed.compress.kernels.compilation``);
and how vectors are cut up, on which results depend.

They are cached in the first of these that can be written to:

    $NUMBA_CACHE_DIR, where it is set
    beside the source
    the user's cache directory
    a fresh temporary one, which lasts as long as the process

Within it every state of the sources has a folder of its own: numba looks at one file's content
alone, not at those whose functions it calls. A new folder begins with what another of these places
already holds: an image comes with loops compiled beside the source, which a container cannot write
to, and numba reads no cache that it could not write. Entries are made for a processor; another one
compiles afresh.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

_SOURCES = Path(str(files("testbed.compress.kernels")))
_UNFINISHED = "unfinished-"


@cache
def directory() -> Path:
    """The folder for the code of this process; it can be written to."""
    folders = [base / "narrows" / _where() / _state() for base in _bases()]
    for folder in folders:
        with suppress(OSError):
            return _prepared(folder, folders)
    return _prepared(_temporary() / _state(), folders)


@contextmanager
def alone() -> Iterator[None]:
    """One process at a time: of several that start together, one compiles and the others read."""
    with ExitStack() as stack:
        with suppress(OSError):  # some file systems have no locks
            file = stack.enter_context((directory() / "lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _bases() -> list[Path]:
    given = os.environ.get("NUMBA_CACHE_DIR")
    users = os.environ.get("XDG_CACHE_HOME")
    with suppress(RuntimeError):  # a user without a home
        users = users or str(Path.home() / ".cache")
    bases = [given, str(_SOURCES / "__pycache__"), users]
    return [Path(base).absolute() for base in bases if base]


def _where() -> str:
    """Several checkouts may share one cache."""
    return hashlib.sha256(str(_SOURCES).encode()).hexdigest()[:12]


def _state() -> str:
    """Return a digest of the kernels' sources, and of the Python whose byte code it was."""
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(_SOURCES.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _prepared(folder: Path, others: list[Path]) -> Path:
    """``folder``, made if need be. Raises OSError when it cannot be written to."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _fill(folder, next(filter(_readable, others), None))
        _remove_older(folder)
    tempfile.TemporaryFile(dir=folder).close()
    return folder


def _fill(folder: Path, source: Path | None) -> None:
    """Make ``folder`` with what ``source`` holds: whole or not at all, whoever else is at it."""
    fresh = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
    try:
        if source is not None:
            shutil.copytree(source, fresh, dirs_exist_ok=True, copy_function=shutil.copyfile)
        fresh.chmod(0o755)  # an image's is made by root and read by others
        fresh.rename(folder)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not folder.is_dir():
            raise


def _remove_older(folder: Path) -> None:
    """Code of sources that are no more. Who still runs them has long read it."""
    for older in folder.parent.iterdir():
        if older != folder and not older.name.startswith(_UNFINISHED):
            shutil.rmtree(older, ignore_errors=True)


def _readable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _temporary() -> Path:
    path = Path(tempfile.mkdtemp(prefix="narrows-kernels-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def load_numba() -> Any:
    """Numba, imported without ``.numba_config.yaml``: whoever may write to the working directory
    would choose how loops are compiled, and what is loaded for it."""
    has_yaml = "yaml" in sys.modules
    reader = sys.modules.get("yaml")
    sys.modules["yaml"] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it cannot be read
            imported = import_module("numba")
    finally:
        del sys.modules["yaml"]
        if has_yaml:
            sys.modules["yaml"] = reader  # type: ignore[assignment]
    imported.config._config_fname = os.devnull
    return imported


def compiled(function: Function) -> Function:
    """Machine code for ``function``, kept on disk, that runs without the interpreter's lock.

    Arithmetic is IEEE 754's in the order that is written: results are the same on every processor.
    Short functions are inlined where compiled ones call them.
    """
    numba = load_numba()
    config = numba.config
    # for this function alone: a user's own are kept where the user wants them
    users, config.CACHE_DIR = config.CACHE_DIR, str(directory())
    try:
        result: Function = numba.njit(cache=True, nogil=True)(function)
    finally:
        config.CACHE_DIR = users
    return result


def intrinsic(write: Callable[..., Any]) -> Callable[..., Any]:
    """A function for compiled ones alone, whose instructions ``write`` writes; see ``simd``."""
    load_numba()
    result: Callable[..., Any] = import_module("numba.extending").intrinsic(write)
    return result


MODULES = (
    "passes",
    "bit_packing",
    "float_codecs",
    "sign_codecs",
    "lowrank",
    "index_codecs",
    "random_loops",
)
"""Each has a tuple ``WARM`` of functions without arguments, which call its loops once on tiny
arrays."""


@cache
def all() -> None:  # noqa: A001
    """Load every kernel; quick after the first time. Processes that start together compile once."""
    with alone():
        for name in MODULES:
            for call in import_module(f"{__package__}.{name}").WARM:
                call()


CHUNK = 1 << 18
"""Elements that one partial sum covers; the unit that threads share out. A multiple of
``PIECE``."""
PIECE = 1 << 13
"""Elements that are worked on while they are in the nearest cache. A multiple of ``LANES`` and
``BLOCK``."""
LANES = 32
"""Sums that run beside each other within a chunk: element i belongs to lane i mod ``LANES``."""
BLOCK = 64
"""Elements that are tested against a threshold at once, one bit each."""
AHEAD = 2048
"""How many elements before they are needed memory is asked for them."""

MAGNITUDE = 0x7FFF_FFFF
"""All bits of a float32 but its sign. As integers, magnitudes are ordered as the numbers are."""

DIGITS = ((20, 11), (9, 11), (0, 9))
"""Shift and width in bits of each digit of a magnitude, the most significant first."""


def chunks(size: int) -> int:
    """How many chunks a vector of ``size`` elements has; the last one may be short."""
    return -(-size // CHUNK)


def as_float32(threshold: float) -> np.float32:
    """Rounded to the nearest, as all that elements are compared with; infinite beyond the range."""
    with np.errstate(over="ignore"):
        return np.float32(threshold)


if __name__ == "__main__":
    all()
