"""Random numbers by position: element i depends on the seed and on i alone.

The stream of a seed is what splitmix64 (Steele, Lea, Flood 2014) gives when it starts there:

    mix(seed + (i + 1) · 0x9E3779B97F4A7C15)        modulo 2⁶⁴

so that any part of it can be made anywhere: by any number of threads, in numba, numpy or torch, on
any device, with the same bits. ``random_loops`` has it for loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


_BITS = 64
_STEP, _MIX = 0x9E37_79B9_7F4A_7C15, ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB))
_LAST = 31
_KEPT = 24
"""Upper bits that become a float32's significand."""


def words(seed: int, count: int) -> NDArray[np.uint64]:
    """The first ``count`` elements of the stream, in numpy: what the others are tested against."""
    z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP)
    for shift, factor in _MIX:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z ^ (z >> np.uint64(_LAST))


def uniforms_on(seed: int, out: Tensor) -> None:
    """Set ``out`` (float32 (n,), any device) to the stream's first elements, uniform in [0, 1).

    ``seed``: 0 to 2⁶⁴ − 1. The same numbers as those of ``random_loops.fill``.
    """
    import torch

    z = torch.arange(1, out.numel() + 1, dtype=torch.int64, device=out.device)
    z.mul_(_signed(_STEP)).add_(_signed(seed))
    for shift, factor in _MIX:
        z.bitwise_xor_(_shifted(z, shift)).mul_(_signed(factor))
    z.bitwise_xor_(_shifted(z, _LAST))
    torch.mul(_shifted(z, _BITS - _KEPT).float(), 2.0**-_KEPT, out=out)


def _shifted(z: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left: torch's integers are signed."""
    return (z >> by) & ((1 << _BITS - by) - 1)


def _signed(word: int) -> int:
    """The same 64 bits in two's complement."""
    return word - (1 << _BITS) if word >> _BITS - 1 else word
