"""Addresses and ports on the loopback interface that nobody else takes between being chosen and being bound."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

_PORTS = count(20_000 + 16 * os.getpid() % 10_000)
"""Below those that the kernel hands out."""


def own_address(which: int) -> str:
    """An address of 127.0.0.0/8 that goes with this process's number: no other process's tests listen there.

    ``which`` of them: 1 to 15.
    """
    process = os.getpid()
    return f"127.{16 * which + (process >> 16) % 16}.{process >> 8 & 255}.{process & 255}"


def own_place() -> tuple[str, int]:
    """An address of this process and a port that was not given out before."""
    return own_address(1), next(_PORTS)


@contextmanager
def refusing() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections: it is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
