"""A profile that nobody measured: from the operations and the bytes of every kernel, on an accelerator's data sheet.

A kernel takes as long as its arithmetic or its memory traffic, whichever is longer (the roofline of Williams, Waterman and
Patterson 2009), and the time to launch it. The kernels are those that PyTorch would launch: the model's forward and
backward pass is made on tensors without contents, and every operation on them is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from testbed.errors import InputError
from testbed.train.flat import FlatModel
from testbed.train.profile import Profile
from testbed.train.profile_measured import HostStopwatch
from testbed.train.timed_passes import TimedPasses

Inputs = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A data sheet, and the shares of it that kernels reach."""

    name: str
    flops: float
    """Float32 operations a second at most; a multiplication and an addition are two."""
    bandwidth: float
    """Bytes a second at most, of its memory."""
    efficiency: float
    """Share of ``flops`` that matrix products and direct convolutions reach."""
    winograd: float
    """The same for 3 × 3 convolutions of stride 1, which need up to 2.25 times fewer multiplications: above 1."""
    streaming: float
    """Share of ``bandwidth`` that kernels reach that only read and write."""
    launch_s: float
    """What a kernel takes beside its work."""


ACCELERATORS: Mapping[str, Accelerator] = {
    "v100": Accelerator("V100-class GPU", 15.7e12, 900e9, 0.7, 1.4, 0.8, 5e-6),
}
"""By name. V100: NVIDIA's data sheet for SXM2; the shares are checked against published throughput (docs/profiles.md)."""

_READS_AGAIN = {
    "native_group_norm": 1.5, "native_group_norm_backward": 5 / 3,
    "native_batch_norm": 1.5, "native_batch_norm_backward": 5 / 3, "cudnn_batch_norm": 1.5,
}  # fmt: skip
"""Normalisations read their input once for the statistics (backward: for two sums) and once more to use them."""
_KERNELS = {
    "convolution_backward": 2, "native_group_norm": 3, "native_group_norm_backward": 4,
    "native_batch_norm": 2, "native_batch_norm_backward": 2,
}  # fmt: skip
"""Operations of more than one kernel."""
_FREE = {
    "detach",
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
"""Operations, beside views, that touch no element."""


class Roofline(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, every operation takes its time on ``accelerator``: ``elapsed_s`` grows by it."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._accelerator = accelerator
        self.elapsed_s = 0.0
        self.flops = 0
        """Operations so far."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        packet = func.overloadpacket
        if not func.is_view and packet.__name__ not in _FREE:
            count = flop_registry.get(packet)
            flops = 0 if count is None else int(count(*args, **kwargs, out_val=result))
            self.flops += flops
            self.elapsed_s += self._time_s(packet.__name__, flops, args, (kwargs, result))
        return result

    def _time_s(self, name: str, flops: int, args: Any, others: Any) -> float:
        its = self._accelerator
        share = its.winograd if _winograd(name, args) else its.efficiency
        traffic = sum(_bytes(leaf) for leaf in tree_leaves((args, others)))
        moved_s = traffic * _READS_AGAIN.get(name, 1.0) / (its.bandwidth * its.streaming)
        return max(flops / (its.flops * share), moved_s) + its.launch_s * _KERNELS.get(name, 1)


def _bytes(leaf: Any) -> int:
    """What is read or written of an argument or a result; an expanded tensor is in memory once."""
    if not isinstance(leaf, Tensor):
        return 0
    return min(leaf.numel() * leaf.element_size(), leaf.untyped_storage().nbytes())


def _winograd(name: str, args: Any) -> bool:
    """Whether a convolution has the form for it; those of few channels gain nothing."""
    if name not in ("convolution", "convolution_backward"):
        return False
    weight, stride = (args[1], args[3]) if name == "convolution" else (args[2], args[4])
    plain = tuple(weight.shape[2:]) == (3, 3) and set(stride) == {1}
    return plain and min(weight.shape[:2]) >= 16


def estimate(module: nn.Module, inputs: Inputs, batch: int, accelerator: Accelerator) -> Profile:
    """Of a step of ``batch`` samples of shape ``inputs``; ``module`` has no contents (torch's device ``meta``).

    Raises InputError for a model whose layers do not follow one another.
    """
    meta = torch.device("meta")
    flat = FlatModel(module, meta)
    x = torch.empty((batch, *inputs), device=meta)
    y = torch.empty(batch, dtype=torch.int64, device=meta)
    roofline = Roofline(accelerator)
    passes = TimedPasses(flat, HostStopwatch(lambda: roofline.elapsed_s))
    with roofline:
        layers = passes.times(lambda: cross_entropy(flat.forward(x), y).backward())  # type: ignore[no-untyped-call]
    about = (
        f"from {roofline.flops / batch / 1e9:.2f} GFLOP a sample and memory traffic, for a {accelerator.name} "
        f"({accelerator.flops / 1e12:g} TFLOP/s float32, {accelerator.bandwidth / 1e9:g} GB/s)"
    )
    return Profile(tuple(layers), "estimated", about)


def accelerator_of(name: str, where: str = "--estimate") -> Accelerator:
    """Raises InputError for one that is not known."""
    if name not in ACCELERATORS:
        known = ", ".join(ACCELERATORS)
        raise InputError(f"unknown accelerator {name!r}", where=where, hint=f"Known: {known}")
    return ACCELERATORS[name]
