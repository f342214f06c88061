"""Reading memory and doing next to nothing with it: the limit that every other pass is measured against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.jit import compiled


@compiled
def read(words: NDArray[np.int64]) -> int:
    """Their sum modulo 2⁶⁴: additions that vectorise, without which nobody would read."""
    total = np.int64(0)
    for i in range(words.size):
        total += words[i]
    return int(total)


WARM = (lambda: read(np.zeros(3, np.int64)),)
