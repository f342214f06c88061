"""A module's parameters, by name, as the buckets of DistributedDataParallel hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from testbed.compress.layout import Layout
from testbed.errors import InputError

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""What is compressed: float32 holds all of their values exactly."""


class Parameters:
    """Names for the tensors that a bucket tells of, and the order of their elements in it.

    A bucket holds a parameter's elements as they lie in memory: in ``channels_last`` that is not the
    order of its dimensions. Layouts have the order of memory, checkpoints that of the dimensions.
    """

    def __init__(self, named: Iterable[tuple[str, Tensor]]) -> None:
        self._tensors = {name: _checked(name, tensor) for name, tensor in named}
        self._names = {id(tensor): name for name, tensor in self._tensors.items()}

    def layout(self, tensors: Sequence[Tensor]) -> Layout:
        """A bucket's layout. Raises InputError for a parameter that is not among those given."""
        return Layout.of((self._name(t), _in_memory(t)) for t in tensors)

    def to_checkpoint(self, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Vectors by name (``<name>`` or ``<name>/<vector>``), each in its parameter's shape."""
        return {key: self._by_dimensions(self._owner(key), held) for key, held in memory.items()}

    def from_checkpoint(self, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The reverse, on the parameters' devices. Raises InputError for what is no parameter's."""
        return {key: self._by_memory(self._owner(key), held) for key, held in memory.items()}

    def _name(self, tensor: Tensor) -> str:
        try:
            return self._names[id(tensor)]
        except KeyError:
            raise InputError(
                f"a parameter of shape {tuple(tensor.shape)} is reduced that was not named",
                hint="Make the state from the very model that its hook is registered with",
            ) from None

    def _owner(self, key: str) -> str:
        name = key if key in self._tensors else key.rpartition("/")[0]
        if name not in self._tensors:
            raise InputError(
                f"something is remembered of {key!r}, and the model has no such parameter",
                hint=f"It has {', '.join(self._tensors)}",
            )
        return name

    def _by_dimensions(self, name: str, held: Tensor) -> Tensor:
        order = _order(self._tensors[name])
        back = sorted(range(len(order)), key=order.__getitem__)
        return held.permute(back).contiguous()

    def _by_memory(self, name: str, held: Tensor) -> Tensor:
        tensor = self._tensors[name]
        if held.shape != tensor.shape:
            raise InputError(
                f"{name!r} has the shape {tuple(tensor.shape)}, and what is remembered of it "
                f"{tuple(held.shape)}"
            )
        return held.to(tensor.device).permute(_order(tensor)).contiguous()


def _checked(name: str, tensor: Tensor) -> Tensor:
    if tensor.requires_grad and tensor.dtype not in FLOATS:
        raise InputError(
            f"parameter {name!r} is {tensor.dtype}, and gradients are compressed as float32",
            hint=f"Parameters can be {', '.join(map(str, FLOATS))}",
        )
    return tensor


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Dimensions from the one of the longest stride on; as they are where a bucket keeps them so."""
    straight = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return straight
    strides = tensor.stride()
    order = tuple(sorted(straight, key=lambda dimension: -strides[dimension]))
    return order if tensor.permute(order).is_contiguous() else straight


def _in_memory(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape[dimension] for dimension in _order(tensor))
