"""Statistics that kernels return, and buffers that they work in.

The kernels themselves: ``kernels.of`` chooses them by device. ``torch_ops.Operations`` has all in
plain PyTorch, ``cpu.CpuKernels`` and ``torch_ops.CudaKernels`` faster ones.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Result = TypeVar("Result")
Fetching = Generator["Sequence[Tensor]", "Sequence[Tensor]", Result]
"""Work that needs contents of a device's tensors on the host: it yields the tensors and is sent
copies. Several such works wait together (``torch_ops.Staging.together``), or each by itself."""


def fetched(work: Fetching[Result]) -> Result:
    """The result of ``work`` alone: for whatever it needs, the device is waited for."""
    try:
        wanted = next(work)
        while True:
            wanted = work.send([tensor.cpu() for tensor in wanted])
    except StopIteration as done:
        result: Result = done.value
        return result


@dataclass(frozen=True, slots=True)
class GradientStatistics:
    """Statistics of a vector's magnitudes. Not finite where any element is not."""

    sum_abs: float
    max_abs: float


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of the magnitudes at or above a threshold, summed in float64."""

    count: int
    """How many there are."""
    nonzero: int
    """How many of them are not 0."""
    sum_abs: float
    sum_squares: float
    sum_log: float
    """Σ ln|x| over those that are not 0."""


@dataclass(slots=True)
class Workspace:
    """Buffers that a caller keeps between its calls, by name; they grow and never shrink."""

    tensors: dict[str, Tensor] = field(default_factory=dict)

    def tensor(self, name: str, count: int, like: Tensor) -> Tensor:
        """The first ``count`` elements of a buffer like ``like`` in dtype and device, undefined."""
        return self.whole(name, count, like)[:count]

    def whole(self, name: str, least: int, like: Tensor) -> Tensor:
        """All of a buffer that has at least ``least`` elements; contents undefined."""
        buffer = self.tensors.get(name)
        fits = buffer is not None and buffer.device == like.device and buffer.dtype == like.dtype
        if buffer is None or not fits or buffer.numel() < least:
            buffer = self.tensors[name] = like.new_empty(least + least // 8)
        return buffer

    def grown(self, name: str, least: int, kept: int) -> Tensor:
        """All of an existing buffer, made ``least`` long at least; its first ``kept`` elements
        stay."""
        buffer = self.tensors[name]
        if buffer.numel() < least:
            longer = self.tensors[name] = buffer.new_empty(least + least // 8)
            longer[:kept] = buffer[:kept]
            buffer = longer
        return buffer
