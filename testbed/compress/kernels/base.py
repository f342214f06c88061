"""The operations of kernels for compressors, and the statistics that they return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


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
    """Buffers that a caller keeps between its calls, by name, grown when needed and never
    shrunk."""

    tensors: dict[str, Tensor] = field(default_factory=dict)

    def tensor(self, name: str, count: int, like: Tensor) -> Tensor:
        """The first ``count`` elements of a buffer of ``like``'s dtype and device; contents
        undefined."""
        return self.whole(name, count, like)[:count]

    def whole(self, name: str, least: int, like: Tensor) -> Tensor:
        """All of a buffer that has at least ``least`` elements; contents undefined."""
        held = self.tensors.get(name)
        fits = held is not None and held.device == like.device and held.dtype == like.dtype
        if held is None or not fits or held.numel() < least:
            held = self.tensors[name] = like.new_empty(least + least // 8)
        return held

    def grown(self, name: str, least: int, kept: int) -> Tensor:
        """All of a buffer that is there, made ``least`` long at least; its first ``kept`` elements
        stay."""
        held = self.tensors[name]
        if held.numel() < least:
            longer = self.tensors[name] = held.new_empty(least + least // 8)
            longer[:kept] = held[:kept]
            held = longer
        return held


class Operations(Protocol):
    """All tensors contiguous and on one device; vectors float32 (n,), indices int64 (m,) ascending.

    Magnitudes are compared with a threshold as float32; that of NaN is at or above none. Results
    are the same for any number of threads.
    """

    def measure(self, flat: Tensor) -> GradientStatistics:
        """One pass."""
        ...

    def add(self, first: Tensor, second: Tensor, out: Tensor) -> GradientStatistics:
        """``out`` ← ``first`` + ``second`` (may be one of them), and its statistics, in one
        pass."""
        ...

    def moments(self, flat: Tensor, threshold: float = 0.0) -> Moments:
        """Return the moments of all |x| ≥ ``threshold``, of finite elements; one pass."""
        ...

    def count_from(self, flat: Tensor, threshold: float) -> int:
        """How many |x| ≥ ``threshold``; one pass."""
        ...

    def choose_from(
        self, flat: Tensor, threshold: float, space: Workspace
    ) -> tuple[Tensor, Tensor]:
        """Indices and values of all |x| ≥ ``threshold``, in ``space`` (valid until its next use);
        one pass."""
        ...

    def digit_counts(self, flat: Tensor, digit: int = 0, prefix: int = 0) -> Tensor:
        """int64 on the host: how many |x| have each value of a digit of their 31 bits; one pass.

        Digits 0, 1, 2 are the upper 11 bits, the next 11 and the last 9 (``compilation.DIGITS``):
        results have shape (2048,), (2048,), (512,). Only elements whose bits above the digit are
        ``prefix`` count.
        """
        ...

    def take_away(self, flat: Tensor, indices: Tensor, values: Tensor) -> None:
        """``flat[indices] -= values``. Raises IndexError, with ``flat`` partly changed."""
        ...

    def add_at(self, flat: Tensor, indices: Tensor, values: Tensor) -> None:
        """``flat[indices] += values``. Raises IndexError, with ``flat`` partly changed."""
        ...
