"""Sum of several workers' messages, as a parameter server builds it: sparse where they are, with
the union of their indices.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from testbed.compress import kernels
from testbed.compress.base import BufferPool, Sparse
from testbed.compress.indices import Indices, refuse
from testbed.compress.kernels import index_codecs
from testbed.compress.kernels.torch_ops import Staging
from testbed.compress.payload import payload_bytes
from testbed.errors import WireError


class HostSupport:
    """A set of elements of a vector of ``size``: a bit for each. Indices are int64 and ascend."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._words = np.zeros(-(-size // 64), np.uint64)
        self._scratch = BufferPool()
        self._indices: Indices | None = None

    def add(self, indices: Tensor) -> None:
        """Take in ``indices``. Raises WireError unless they ascend in [0, size)."""
        given = np.ascontiguousarray(indices.numpy())
        self._indices = None
        if not index_codecs.bitmap_add(self._words, given, self._size):
            refuse(given, self._size)

    def count(self) -> int:
        """Elements in it."""
        if self._indices is not None:
            return self._indices.size
        return int(index_codecs.count_ones(self._words))

    def indices(self) -> Tensor:
        """All of them, in a buffer that is used again after the next change."""
        if self._indices is None:
            self._indices = self._scratch.array("indices", self.count(), np.int64)
            index_codecs.bitmap_read(self._words, self._indices)
        return torch.from_numpy(self._indices)

    def clear(self) -> None:
        """No bit is set."""
        self._words.fill(0)
        self._indices = None


class DeviceSupport:
    """The same on an accelerator, with a byte for each element."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._marks = torch.zeros(size, dtype=torch.bool, device=device)
        self._indices: Tensor | None = None

    def add(self, indices: Tensor) -> None:
        """An index outside is the device's error."""
        self._marks.index_fill_(0, indices, 1)
        self._indices = None

    def count(self) -> int:
        """Marks that are set."""
        return self.indices().numel()

    def indices(self) -> Tensor:
        """A new tensor after a change: an accelerator's allocator has memory of the last call
        ready."""
        if self._indices is None:
            self._indices = self._marks.nonzero().flatten()  # waits for the device
        return self._indices

    def clear(self) -> None:
        """No mark is set."""
        self._marks.zero_()
        self._indices = None


_SWEEP = 32
"""Above one element in so many, zeroing the whole vector is faster than finding those that are not
zero."""


class Aggregate:
    """Sums of a round over a vector of ``size`` elements, float32, added up in the order of the
    calls.

    Adding in order of rank makes the sum, rounding included, the same in every run and on every
    device. All buffers are made once. ``device``: where sums are kept; messages come from the host,
    and the mean goes back there. ``value_bytes``, ``keeps_zero``: of the value coding in which
    means are sent (float32 without them), from which it follows what pays.
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
        self._device, self._staging = self._sum.device, Staging()
        self._operations = kernels.of(self._sum)
        self._support: HostSupport | DeviceSupport = (
            HostSupport(size) if self._device.type == "cpu" else DeviceSupport(size, self._device)
        )
        self._full = False

    def add(self, sparse: Sparse) -> None:
        """Add one message, which is not needed afterwards. Raises WireError for one of another
        size."""
        if sparse.size != self.size:
            raise WireError(f"message for {sparse.size} elements where {self.size} are summed")
        values = self._staging.to_device(sparse.values, self._device)
        if sparse.indices is None:
            self._sum.add_(values)
            self._full = True
            return
        indices = self._staging.to_device(sparse.indices, self._device)
        self._support.add(indices)  # it checks them on the host; decoding a payload has
        self._operations.add_at(self._sum, indices, values, known=True)

    def mean(self, workers: int) -> Sparse:
        """The sum divided by ``workers`` (as float32) on the union of what was added, on the host.

        Dense where a sparse message would be no shorter. It holds until the next call.
        """
        divisor = self._divisor(workers)
        if not self._sparse_pays():
            mean = Sparse(self.size, None, torch.div(self._sum, divisor, out=self._mean))
            return self._staging.to_host(mean)
        indices = self._support.indices()
        values = torch.index_select(self._sum, 0, indices, out=self._mean[: indices.numel()])
        return self._staging.to_host(Sparse(self.size, indices, values.div_(divisor)))

    def reset(self) -> None:
        """Back to zero, for the next round."""
        if self._full or self._support.count() * _SWEEP > self.size:
            self._sum.zero_()
        else:
            self._sum.index_fill_(0, self._support.indices(), 0.0)
        self._support.clear()
        self._full = False

    def _divisor(self, workers: int) -> int | Tensor:
        """On an accelerator PyTorch multiplies by the reciprocal of a number, which rounds twice;
        it divides by a tensor."""
        if self._device.type == "cpu":
            return workers
        return torch.full((), workers, dtype=torch.float32, device=self._device)

    def _sparse_pays(self) -> bool:
        """Return whether the union is sent by itself: where zeros can be written, only if that is
        shorter."""
        if self._full or not self._keeps_zero:
            return not self._full
        return self._bytes(self._support.count()) < self._bytes(self.size)

    def _bytes(self, count: int) -> int:
        return payload_bytes(self.size, count, self._value_bytes)
