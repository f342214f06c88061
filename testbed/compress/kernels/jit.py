"""How loops are compiled: these decorators instead of numba's own, in every module of loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba import extending

from testbed.compress.kernels import compilation

Function = TypeVar("Function", bound=Callable[..., Any])


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
    result: Callable[..., Any] = extending.intrinsic(write)
    return result
