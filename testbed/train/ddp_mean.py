"""The mean of all ranks' messages, as each rank works it out for itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING

import torch

from testbed.compress import kernels
from testbed.compress.base import Sparse
from testbed.compress.payload import Scratch
from testbed.compress.wire import decode
from testbed.train.reply import Reply

if TYPE_CHECKING:
    from torch import Tensor

    from testbed.algorithms import Algorithm
    from testbed.compress.layout import Layout


class Mean:
    """Messages added up in order of rank and divided by their number, as the parameter server does.

    Where the algorithm's server writes its reply in another way than exactly (a majority vote, half
    precision), every rank does so too: all read the same mean, and go on as workers of a server would.
    """

    def __init__(self, row: Algorithm, layout: Layout, ranks: int) -> None:
        self._ranks = ranks
        self._total: Tensor | None = None
        exact = row.down == "fp32" and row.down_memory == "none"
        self._reply = None if exact else _Reply(row, layout)

    def put(self, messages: Iterable[Sparse], out: Tensor, rng: Random) -> None:
        """Set ``out`` (n,), of any of the kinds of float, to the mean.

        Messages lie on the host; each is needed until the next one is asked for.
        """
        total = self._float32(out).zero_()
        if self._reply is None:
            for message in messages:
                _add(message, total)
            total.div_(self._ranks)
        else:
            _add(self._reply.to(messages, self._ranks, rng), total)
        if total is not out:
            out.copy_(total)

    def state(self) -> dict[str, Tensor]:
        """What replies have left out, by parameter."""
        return {} if self._reply is None else self._reply.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        if self._reply is not None:
            self._reply.load(state)

    def _float32(self, out: Tensor) -> Tensor:
        if out.dtype == torch.float32:
            return out
        if self._total is None:
            self._total = torch.empty_like(out, dtype=torch.float32)
        return self._total


class _Reply(Reply):
    """A reply on the host, as a server's is, whose memory can be taken along."""

    def __init__(self, row: Algorithm, layout: Layout) -> None:
        super().__init__(row, layout)
        self._sums, self._scratch = self.aggregate(), Scratch()

    def to(self, messages: Iterable[Sparse], ranks: int, rng: Random) -> Sparse:
        """What workers would read of the mean."""
        self._sums.reset()
        for message in messages:
            self._sums.add(message)
        payload = self.encode(self._sums.mean(ranks), rng)
        return decode(payload, self._sums.size, self._scratch)

    def state(self) -> dict[str, Tensor]:
        return {} if self._memory is None else self._memory.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        if self._memory is not None and state:
            self._memory.load({key: held.cpu() for key, held in state.items()})


def _add(message: Sparse, total: Tensor) -> None:
    values = message.values.to(total.device)
    if message.indices is None:
        total.add_(values)
    else:
        kernels.of(total).add_at(total, message.indices.to(total.device), values)
