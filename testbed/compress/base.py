"""The seams of compression: a selector picks elements, a memory keeps what was not sent."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol

from testbed.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sparse:
    """Part of a flat vector: ``indices`` int64 ascending (m,), ``values`` float32 (m,), length ``size``.

    ``indices`` None: dense, ``values`` has shape (size,).
    """

    size: int
    indices: Tensor | None
    values: Tensor

    @property
    def count(self) -> int:
        """Elements that are sent."""
        return int(self.values.numel())


class Selector(Protocol):
    """Chooses which elements of a flat gradient travel."""

    def select(self, flat: Tensor, density: float, rng: Random) -> Sparse:
        """``flat`` float32 (n,), contiguous, finite; ``density`` in (0, 1]. At least one element."""
        ...


class Memory(Protocol):
    """What was left out of earlier messages, by bucket name."""

    def compensate(self, name: str, flat: Tensor) -> Tensor:
        """The vector to compress in place of ``flat``; float32 (n,). ``flat`` itself stays as it is."""
        ...

    def update(self, name: str, compensated: Tensor, sent: Sparse) -> None:
        """Keep what ``sent`` lacks of ``compensated`` (which may be consumed)."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Residuals by name, for a checkpoint."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        ...


selectors: Registry[type[Selector]] = Registry("selector", "narrows.compressors")
memories: Registry[type[Memory]] = Registry("memory", "narrows.memories")
