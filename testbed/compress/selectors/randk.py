"""Elements chosen at random (Rand-k, Stich et al. 2018), whose indices need not be sent."""

from __future__ import annotations

from random import Random

from testbed.compress import indices as indices_module
from testbed.compress.base import AccumulatedGradient, Selection, Sparse, Stateless
from testbed.compress.gradient_stats import element_count
from testbed.compress.kernels.base import Workspace
from testbed.errors import InputError


class RandK(Stateless):
    """``round(density · n)`` elements without replacement, each set of so many as likely as any
    other.

    Sender and receiver work the indices out from a seed (``seeded``), which travels in their place.
    ``scale``: values are multiplied by n/k, which makes the message unbiased, E C(x) = x; it is
    meant for use without error feedback.
    """

    def __init__(self, scale: bool = False) -> None:
        if not isinstance(scale, bool):
            raise InputError(f"scale is {scale!r}", hint="It is true or false.")
        self._scale, self._space = scale, Workspace()

    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        """Dense when every element is asked for; else one 64-bit seed is drawn."""
        import torch

        flat = given.flat
        size = flat.numel()
        count = element_count(size, density)
        if count == size:
            return Sparse(size, None, flat, how=Selection(passes=0.0))
        seed = rng.getrandbits(64)
        room = self._space.tensor("indices", count, torch.empty(0, dtype=torch.int64))
        indices_module.indices(size, count, seed, room.numpy())
        indices = room.to(flat.device)
        values = torch.index_select(flat, 0, indices, out=self._space.tensor("values", count, flat))
        if self._scale:
            values.mul_(size / count)
        return Sparse(size, indices, values, seed, Selection(passes=count / size))
