"""Garbage collection, made rare for what should not wait for it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from testbed.process import rarely_collected


@contextmanager
def seldom_collected() -> Iterator[None]:
    """With few collections of garbage: on real links a pause of some milliseconds would be measured as network, and in
    virtual time they would look through ten thousand nodes again and again."""
    _set_aside(len(sys.modules))
    gc.collect()
    with rarely_collected():
        yield


@cache
def _set_aside(modules: int) -> None:
    """Have collections pass over what was there when so many modules were imported: to look through them takes 0.3 s."""
    del modules
    gc.freeze()
