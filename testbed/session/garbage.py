"""Garbage collection, kept out of what must not wait for it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: on real links a pause of some milliseconds would be measured as network, and in
    virtual time it would look through ten thousand nodes again and again."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
