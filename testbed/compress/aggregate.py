"""The sum of several workers' messages, as a parameter server builds it, sparse where they are."""

from __future__ import annotations

import torch
from torch import Tensor

from testbed.compress.base import Sparse
from testbed.compress.wire import payload_bytes
from testbed.errors import WireError


class Aggregate:
    """Sums of a round over a vector of ``size`` elements, float32, added up in the order of the calls.

    Adding in order of rank makes the sum, rounding included, the same in every run. All buffers are
    made once. ``device``: where sums are kept.
    """

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self.size = size
        self._sum = torch.zeros(size, device=device)
        self._mean = torch.empty(size, device=device)
        self._support = torch.zeros(size, dtype=torch.bool, device=device)
        self._full = False

    def add(self, sparse: Sparse) -> None:
        """Add one message. Raises WireError when it is for a vector of another size."""
        if sparse.size != self.size:
            raise WireError(f"message for {sparse.size} elements where {self.size} are summed")
        values = sparse.values.to(self._sum.device)
        if sparse.indices is None:
            self._sum.add_(values)
            self._full = True
            return
        indices = sparse.indices.to(self._sum.device)
        self._sum.index_add_(0, indices, values)
        self._support[indices] = True

    def mean(self, workers: int) -> Sparse:
        """The sum divided by ``workers`` (as float32) on the union of what was added.

        Dense where a sparse message would be no shorter. Its values hold until the next call.
        """
        indices = self._indices()
        if indices is None:
            return Sparse(self.size, None, torch.div(self._sum, workers, out=self._mean))
        values = torch.index_select(self._sum, 0, indices, out=self._mean[: indices.numel()])
        return Sparse(self.size, indices, values.div_(workers))

    def reset(self) -> None:
        """Back to zero, for the next round."""
        self._sum.zero_()
        self._support.zero_()
        self._full = False

    def _indices(self) -> Tensor | None:
        """Ascending int64 indices of the union; None when all elements are as short to send."""
        if self._full:
            return None
        indices = self._support.nonzero().flatten()
        dense = payload_bytes(self.size, self.size)
        return indices if payload_bytes(self.size, indices.numel()) < dense else None
