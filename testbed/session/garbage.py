"""Garbage collection, kept out of what must not wait for it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: on real links a pause of some milliseconds would be measured as network, and in
    virtual time it would look through ten thousand nodes again and again."""
    _set_aside(len(sys.modules))
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@cache
def _set_aside(modules: int) -> None:
    """Have collections pass over what was there when so many modules were imported: to look through them takes 0.3 s."""
    del modules
    gc.freeze()
