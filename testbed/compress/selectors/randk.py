"""Elements chosen at random (Rand-k, Stich et al. 2018), whose indices need not be sent."""

from __future__ import annotations

from random import Random
from typing import Any

from testbed.compress import indices as indices_module
from testbed.compress.base import AccumulatedGradient, Options, Selection, Sparse
from testbed.compress.kernels.base import Workspace
from testbed.compress.selectors import CountSelector


class RandKOptions(Options):
    """Options of ``randk``."""

    scale: bool = False
    """Multiply values by n/k, which makes the message unbiased, E C(x) = x; for use without error
    feedback."""


class RandK(CountSelector[RandKOptions]):
    """``round(density · n)`` elements without replacement, each set of so many as likely as any
    other.

    Sender and receiver work the indices out from a seed (``indices``), which travels in their
    place.
    """

    name, model = "randk", RandKOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._space = Workspace()

    @property
    def alters(self) -> bool:
        """Scaled ones are."""
        return self.options.scale

    def choose(self, given: AccumulatedGradient, count: int, rng: Random) -> Sparse:
        """One 64-bit seed is drawn."""
        import torch

        flat, seed = given.flat, rng.getrandbits(64)
        size = flat.numel()
        room = self._space.tensor("indices", count, torch.empty(0, dtype=torch.int64))
        indices_module.indices(size, count, seed, room.numpy())
        indices = room.to(flat.device)
        values = torch.index_select(flat, 0, indices, out=self._space.tensor("values", count, flat))
        if self.options.scale:
            values.mul_(size / count)
        return Sparse(size, indices, values, seed, Selection(passes=count / size))
