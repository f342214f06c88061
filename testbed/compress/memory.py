"""Memory that a worker keeps from step to step: error feedback, momentum correction, or nothing;
and vectors by parameters' names, so that they outlive a change of buckets.

Error feedback (Seide 2014, Stich 2018): what was not sent is added to the next gradient.

    p = g + e        send C(p)        e ← p − C(p)

so that at any time Σ sent + residual = Σ gradients.

Momentum correction with masking: Deep Gradient Compression (Lin et al., ICLR 2018, §3.1 and §3.2).

    u ← m·u + g        v ← v + u        send C(v)
    v ← v − C(v)       u ← 0 where something was sent

Error feedback alone would apply an element's momentum late and all at once; here momentum is
accumulated before compression. **It takes the place of the optimizer's momentum, which must be 0.**
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from testbed.compress import kernels
from testbed.compress.base import AccumulatedGradient, Given, Memory, Options, Sparse
from testbed.compress.kernels.base import Fetching, fetched
from testbed.compress.layout import Layout
from testbed.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def split_by_parameter(flat: Tensor, layout: Layout, vector: str = "") -> dict[str, Tensor]:
    """Copies of the parts of ``flat`` (n,), each of its parameter's shape, by ``key``."""
    return {
        key(part.name, vector): flat[part.offset : part.offset + part.size].clone().view(part.shape)
        for part in layout
    }


def join_parameters(state: Mapping[str, Tensor], layout: Layout, vector: str = "") -> Tensor | None:
    """The vector (n,) of ``layout`` from what ``split_by_parameter`` gave for this or other
    layouts.

    Zeros for parts that ``state`` does not have; None where it has none of them. Raises InputError
    for a part of another size.
    """
    known = {p: state[key(p.name, vector)] for p in layout if key(p.name, vector) in state}
    if not known:
        return None
    flat = next(iter(known.values())).new_zeros(layout.size)
    for part, values in known.items():
        if values.numel() != part.size:
            raise InputError(
                f"{part.name!r} has {part.size} elements, and {values.numel()} of it were "
                "remembered"
            )
        flat[part.offset : part.offset + part.size] = values.flatten()
    return flat


def parameters_of(keys: Iterable[str], names: Collection[str]) -> list[str]:
    """Those of a state's keys that are of parameters called ``names``."""
    return [name for name in keys if name in names or name.rpartition("/")[0] in names]


def key(name: str, vector: str) -> str:
    """Return the name of a parameter's part of a vector in a state."""
    return f"{name}/{vector}" if vector else name


def _subtract(given: AccumulatedGradient, sent: Sparse) -> None:
    """p ← p − sent, whose values may view p and are void afterwards. They have been encoded: that
    looks at every index."""
    if sent.indices is None:
        given.flat.sub_(sent.values)
    else:
        kernels.of(given.flat).subtract_at(given.flat, sent.indices, sent.values, known=True)


class QueuedMemory(Memory[Given]):
    """Memory whose sums are queued on a device: ``accumulate`` is ``accumulating`` by itself."""

    def accumulate(self, flat: Tensor) -> AccumulatedGradient:
        """Valid until ``update``."""
        return fetched(self.accumulating(flat))


class ErrorFeedback(QueuedMemory[Options]):
    """One residual, float32 (n,), on the gradient's device; it does not depend on the density.

    p is made beside e, and takes its place once something was sent: a gradient that is refused
    leaves no trace. The two buffers change places at every step.
    """

    name = "feedback"

    def __init__(self, layout: Layout, **options: Any) -> None:
        super().__init__(layout, **options)
        self._residual: Tensor | None = None
        self._spare: Tensor | None = None

    def accumulating(self, flat: Tensor) -> Fetching[AccumulatedGradient]:
        """g + e, valid until ``update``."""
        if self._residual is None:
            self._residual = flat.new_zeros(flat.shape)
        elif self._residual.device != flat.device:  # loaded from a checkpoint
            self._residual = self._residual.to(flat.device)
        if self._spare is None:
            self._spare = flat.new_empty(flat.shape)
        statistics = yield from kernels.of(flat).adding(self._residual, flat, self._spare)
        return AccumulatedGradient(self._spare, statistics.sum_abs, statistics.max_abs)

    def update(self, given: AccumulatedGradient, sent: Sparse) -> None:
        """e ← p − sent, whose values may view p and are void afterwards."""
        _subtract(given, sent)
        self._residual, self._spare = given.flat, self._residual

    def state(self) -> dict[str, Tensor]:
        """Copies of the residual's parts, by the name of the parameter."""
        return {} if self._residual is None else split_by_parameter(self._residual, self._layout)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Zeros for parts that ``state`` does not have."""
        self._residual = join_parameters(state, self._layout)


VELOCITY, RESIDUAL = "velocity", "residual"


class MomentumOptions(Options):
    """Options of memory ``dgc``."""

    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.9, description="Share of the velocity that stays (m); DGC takes 0.9, 0 is feedback."
    )
    masking: bool = Field(
        True,
        description="Forget the velocity of elements that were sent, so that it does not push "
        "them on in an old direction.",
    )


class MomentumCorrection(QueuedMemory[MomentumOptions]):
    """Velocity u and residual v, float32 (n,) each, on the gradient's device.

    A message of all elements (no indices) masks nothing: sent exactly, it is plain momentum. Where
    values are rounded, v keeps what the receiver does not read.

    New vectors are made beside the old ones and take their place once something was sent: a
    gradient that is refused leaves no trace.
    """

    name, model = "dgc", MomentumOptions

    def __init__(self, layout: Layout, **options: Any) -> None:
        super().__init__(layout, **options)
        self._kept: dict[str, Tensor] = {}
        self._next: dict[str, Tensor] = {}

    def accumulating(self, flat: Tensor) -> Fetching[AccumulatedGradient]:
        """v + m·u + g, valid until ``update``."""
        import torch

        for kind in (VELOCITY, RESIDUAL):
            kept = self._kept.get(kind)
            # what a checkpoint brought may lie elsewhere
            self._kept[kind] = flat.new_zeros(flat.shape) if kept is None else kept.to(flat.device)
            if kind not in self._next:
                self._next[kind] = flat.new_empty(flat.shape)
        velocity, residual = self._next[VELOCITY], self._next[RESIDUAL]
        torch.add(flat, self._kept[VELOCITY], alpha=self.options.momentum, out=velocity)
        statistics = yield from kernels.of(flat).adding(self._kept[RESIDUAL], velocity, residual)
        return AccumulatedGradient(residual, statistics.sum_abs, statistics.max_abs)

    def update(self, given: AccumulatedGradient, sent: Sparse) -> None:
        """v ← v − sent, u ← 0 there; ``sent.values`` may view v and are void afterwards."""
        _subtract(given, sent)
        if sent.indices is not None and self.options.masking:
            self._next[VELOCITY].index_fill_(0, sent.indices, 0.0)
        self._kept, self._next = self._next, self._kept

    def state(self) -> dict[str, Tensor]:
        """Copies of both vectors' parts, ``<name>/velocity`` and ``<name>/residual``."""
        return {
            name: part
            for kind, vector in self._kept.items()
            for name, part in split_by_parameter(vector, self._layout, kind).items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Zeros for parts that ``state`` does not have. Raises InputError for other sizes."""
        both = {kind: join_parameters(state, self._layout, kind) for kind in (VELOCITY, RESIDUAL)}
        self._kept = {kind: vector for kind, vector in both.items() if vector is not None}


class NoMemory(QueuedMemory[Options]):
    """No compensation: nothing is kept."""

    name = "none"

    def accumulating(self, flat: Tensor) -> Fetching[AccumulatedGradient]:
        """``flat`` itself."""
        statistics = yield from kernels.of(flat).measuring(flat)
        return AccumulatedGradient(flat, statistics.sum_abs, statistics.max_abs)

    def update(self, given: AccumulatedGradient, sent: Sparse) -> None:
        """Keep nothing."""
