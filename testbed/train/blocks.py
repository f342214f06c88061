"""Gradients of blocks of the mini-batch, each by itself: for exchanges in which several workers compute the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import torch

from testbed.compress.layout import Layout
from testbed.errors import GradientError
from testbed.exchange.base import Update
from testbed.exchange.coded.quantize import POISON, Fixed, Floats, quantize
from testbed.exchange.kinds import BlocksSide
from testbed.node import Buffer
from testbed.train.carrier import Freight
from testbed.train.compute import Computed
from testbed.train.job import Job
from testbed.train.observing import Sent
from testbed.train.workshop import WorkersComputation, WorkersReplica


class BlockComputation:
    """What ``exchange`` asks this worker for, in place of its own batch (see ``compute.Computation``).

    Blocks are computed one by one and on one thread: whoever computes the same one gets the same bits.
    """

    def __init__(
        self, job: Job, computation: WorkersComputation, size: int, exchange: BlocksSide
    ) -> None:
        torch.set_num_threads(1)
        self._computation, self._exchange = computation, exchange
        self._count, self._size = job.workers * job.train.batch, size
        self.batches = computation.batches
        self.rows: Floats = np.empty((0, size), np.float32)
        """The sum of the sample gradients of each block, float32 (blocks, size)."""
        self.gradients(step=1)  # what happens for the first time takes longer

    def gradients(self, step: int) -> Computed:
        """Set ``rows`` to the gradients of this worker's blocks of ``step``."""
        places = self._exchange.samples(self._count)
        if len(self.rows) != len(places):
            self.rows = np.zeros((len(places), self._size), np.float32)
        return self._computation.blocks(step, places, self.rows)


class BlocksCarrier:
    """Blocks as 32-bit fixed point (``testbed.train.carrier.Carrier``)."""

    def __init__(
        self, replica: WorkersReplica, computation: BlockComputation, exchange: BlocksSide
    ) -> None:
        self._replica, self._computation, self._exchange = replica, computation, exchange
        self._sent: Buffer = b""

    def pack(self) -> list[tuple[int, Buffer]]:
        """In the place of the rows themselves. Raises GradientError for what is no number."""
        rows = self._computation.rows
        fixed, saturated = rows.view(np.int32), 0
        for row, into in zip(rows, fixed, strict=True):
            counted = quantize(row, into, self._exchange.over)
            saturated += counted.saturated
            if counted.poisoned:
                raise _diverged(into, self._replica.flat.layout)
        self._exchange.report(saturated)
        self._sent = fixed.data.cast("B")
        return [(0, self._sent)]

    def freight(self) -> Freight:
        """All is sent; which elements of it how often is the exchange's to tell."""
        return Freight(1.0, Sent(self._replica.flat.size, 0.0, 0.0, {}), crc32(self._sent), None)

    def unpack(self, updates: Sequence[Update]) -> None:
        """See ``Carrier``."""
        (update,) = updates
        self._replica.take(update.payload)


def _diverged(values: Fixed, layout: Layout) -> GradientError:
    wrong = np.flatnonzero(values == POISON)
    part = layout.at(int(wrong[0]))
    return GradientError(
        f"the gradient of {part.name!r} is not finite at element {int(wrong[0]) - part.offset} "
        f"({len(wrong)} such elements in all): the training has diverged, or its data are not finite"
    )
