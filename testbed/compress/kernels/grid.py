"""How vectors are cut up. Results depend on these numbers and on nothing else, least of all on threads."""

from __future__ import annotations

import numpy as np

CHUNK = 1 << 18
"""Elements that one partial sum covers; the unit that threads share out. A multiple of ``PIECE``."""
PIECE = 1 << 13
"""Elements that are worked on while they are in the nearest cache. A multiple of ``LANES`` and ``BLOCK``."""
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
    """Rounded to the nearest, as everything is that elements are compared with; beyond the range infinite."""
    with np.errstate(over="ignore"):
        return np.float32(threshold)
