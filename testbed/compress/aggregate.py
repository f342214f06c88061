"""The sum of several workers' messages, as a parameter server builds it, sparse where they are."""

from __future__ import annotations

from collections.abc import Callable

import torch

from testbed.compress import kernels
from testbed.compress.base import Sparse
from testbed.compress.support import support
from testbed.compress.wire import payload_bytes
from testbed.errors import WireError

_SWEEP = 32
"""Above one element in so many, zeroing the whole vector is faster than finding those that are not zero."""


class Aggregate:
    """Sums of a round over a vector of ``size`` elements, float32, added up in the order of the calls.

    Adding in order of rank makes the sum, rounding included, the same in every run. All buffers are
    made once. ``device``: where sums are kept. ``value_bytes``, ``keeps_zero``: of the value coding in
    which means are sent (float32 without them), from which it follows what pays.
    """

    def __init__(
        self,
        size: int,
        device: torch.device | str = "cpu",
        value_bytes: Callable[[int], int] | None = None,
        *,
        keeps_zero: bool = True,
    ) -> None:
        self.size = size
        self._value_bytes, self._keeps_zero = value_bytes, keeps_zero
        self._sum = torch.zeros(size, device=device)
        self._mean = torch.empty(size, device=device)
        self._operations = kernels.of(self._sum)
        self._support = support(size, self._sum.device)
        self._full = False

    def add(self, sparse: Sparse) -> None:
        """Add one message, which is not needed afterwards. Raises WireError for one of another size."""
        if sparse.size != self.size:
            raise WireError(f"message for {sparse.size} elements where {self.size} are summed")
        values = sparse.values.to(self._sum.device)
        if sparse.indices is None:
            self._sum.add_(values)
            self._full = True
            return
        indices = sparse.indices.to(self._sum.device)
        self._support.add(indices)  # it checks them
        self._operations.add_at(self._sum, indices, values)

    def mean(self, workers: int) -> Sparse:
        """The sum divided by ``workers`` (as float32) on the union of what was added.

        Dense where a sparse message would be no shorter. It holds until the next call.
        """
        if not self._sparse_pays():
            return Sparse(self.size, None, torch.div(self._sum, workers, out=self._mean))
        indices = self._support.indices()
        values = torch.index_select(self._sum, 0, indices, out=self._mean[: indices.numel()])
        return Sparse(self.size, indices, values.div_(workers))

    def reset(self) -> None:
        """Back to zero, for the next round."""
        if self._full or self._support.count() * _SWEEP > self.size:
            self._sum.zero_()
        else:
            self._sum.index_fill_(0, self._support.indices(), 0.0)
        self._support.clear()
        self._full = False

    def _sparse_pays(self) -> bool:
        """Whether the union is sent by itself: where zeros can be written, only if that is shorter."""
        if self._full or not self._keeps_zero:
            return not self._full
        return self._bytes(self._support.count()) < self._bytes(self.size)

    def _bytes(self, count: int) -> int:
        return payload_bytes(self.size, count, self._value_bytes)
