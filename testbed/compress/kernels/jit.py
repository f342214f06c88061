"""How loops are compiled: these decorators instead of numba's own, in every module of loops."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from testbed.compress.kernels import compilation

Function = TypeVar("Function", bound=Callable[..., Any])


def _numba() -> Any:
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


numba = _numba()


def compiled(function: Function) -> Function:
    """Machine code for ``function``, kept on disk, that runs without the interpreter's lock.

    Arithmetic is IEEE 754's in the order that is written: results are the same on every processor.
    Short functions are inlined where compiled ones call them.
    """
    config = numba.config
    # for this function alone: a user's own are kept where the user wants them
    users, config.CACHE_DIR = config.CACHE_DIR, str(compilation.directory())
    try:
        result: Function = numba.njit(cache=True, nogil=True)(function)
    finally:
        config.CACHE_DIR = users
    return result


def intrinsic(write: Callable[..., Any]) -> Callable[..., Any]:
    """A function for compiled ones alone, whose instructions ``write`` writes; see ``simd``."""
    result: Callable[..., Any] = import_module("numba.extending").intrinsic(write)
    return result
