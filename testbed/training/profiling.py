"""Profiles of a model: measured here, or estimated by the roofline from an accelerator's data
sheet; and the one that a worker is held to.

A kernel takes as long as its arithmetic or its memory traffic, whichever is longer (the roofline of
Williams, Waterman and Patterson 2009), and the time to launch it. The kernels are those that
PyTorch would launch: the model's forward and backward pass is made on tensors without contents, and
every operation on them is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from testbed.errors import InputError
from testbed.scenario.profile import LayerTimes, Profile
from testbed.training.job import Job
from testbed.training.layer_hooks import TimedPasses
from testbed.training.pacing import step_times
from testbed.training.replica import FlatModel

WARM_UP = 4
"""The first passes pay for what is loaded, compiled and allocated."""
PASSES = 11

OfPasses = Callable[[list[float]], float]


class HostStopwatch:
    """A stopwatch by a clock of the host: for what computes in the thread that calls it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._marks_s: list[float] = []

    def mark(self) -> None:
        """See ``Stopwatch``."""
        self._marks_s.append(self._now())

    def read(self) -> list[float]:
        """See ``Stopwatch``."""
        found = [mark_s - self._marks_s[0] for mark_s in self._marks_s]
        self._marks_s.clear()
        return found


class CudaStopwatch:
    """A stopwatch by events in the device's own queue, which is far behind the host.

    Nothing waits for anything until it is read.
    """

    def __init__(self) -> None:
        self._marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """See ``Stopwatch``."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def read(self) -> list[float]:
        """See ``Stopwatch``."""
        self._marks[-1].synchronize()
        found = [self._marks[0].elapsed_time(event) / 1e3 for event in self._marks]
        self._marks.clear()
        return found


def measure(
    flat: FlatModel,
    compute: Callable[[], object],
    now: Callable[[], float],
    *,
    passes: int = PASSES,
    warm_up: int = WARM_UP,
    of_passes: OfPasses = median,
    about: str = "measured here",
) -> Profile:
    """Measure the profile of ``compute``, which makes one forward and one backward pass of
    ``flat``'s model; ``now`` in seconds.

    Whatever else ``compute`` does before is the first layer's. Gradients are added to
    ``flat.gradients``, as ``compute`` does it. One pass is enough where it takes no time, on a
    virtual clock: all times are 0 then. ``of_passes``: the time that counts of a layer's. Raises
    InputError for a model whose layers do not follow one another.
    """
    device = flat.parameters.device
    watched = TimedPasses(flat, CudaStopwatch() if device.type == "cuda" else HostStopwatch(now))
    first = watched.times(compute)
    if not any(one.forward_s or one.backward_s for one in first):
        return Profile(tuple(first), "measured", about)
    for _ in range(warm_up - 1):
        watched.times(compute)
    seen = [watched.times(compute) for _ in range(passes)]
    layers = tuple(_one([times[n] for times in seen], of_passes) for n in range(len(first)))
    return Profile(layers, "measured", about)


def _one(seen: list[LayerTimes], of_passes: OfPasses) -> LayerTimes:
    forward_s = of_passes([one.forward_s for one in seen])
    return LayerTimes(seen[0].name, forward_s, of_passes([one.backward_s for one in seen]))


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
    """The same for 3 × 3 convolutions of stride 1, which need up to 2.25 times fewer
    multiplications: above 1."""
    streaming: float
    """Share of ``bandwidth`` that kernels reach that only read and write."""
    launch_s: float
    """Seconds that a kernel takes beside its work."""


ACCELERATORS: Mapping[str, Accelerator] = {
    "v100": Accelerator("V100-class GPU", 15.7e12, 900e9, 0.7, 1.4, 0.8, 5e-6),
}
"""Accelerators by name. V100: NVIDIA's data sheet for SXM2; the shares are checked against
published throughput (docs/profiles.md)."""

_READS_AGAIN = {
    "native_group_norm": 1.5,
    "native_group_norm_backward": 5 / 3,
    "native_batch_norm": 1.5,
    "native_batch_norm_backward": 5 / 3,
    "cudnn_batch_norm": 1.5,
}
"""Normalisations read their input once for the statistics (backward: for two sums) and once more to
use them."""
_KERNELS = {
    "convolution_backward": 2,
    "native_group_norm": 3,
    "native_group_norm_backward": 4,
    "native_batch_norm": 2,
    "native_batch_norm_backward": 2,
}
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
    """While it is entered, every operation takes its time on ``accelerator``: ``elapsed_s`` grows
    by it."""

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
    """Return the bytes read or written of an argument or result; an expanded tensor counts once."""
    if not isinstance(leaf, Tensor):
        return 0
    return min(leaf.numel() * leaf.element_size(), leaf.untyped_storage().nbytes())


def _winograd(name: str, args: Any) -> bool:
    """Return whether a convolution has the form for Winograd's algorithm; with few channels it
    gains nothing."""
    if name not in ("convolution", "convolution_backward"):
        return False
    weight, stride = (args[1], args[3]) if name == "convolution" else (args[2], args[4])
    plain = tuple(weight.shape[2:]) == (3, 3) and set(stride) == {1}
    return plain and min(weight.shape[:2]) >= 16


def estimate(module: nn.Module, inputs: Inputs, batch: int, accelerator: Accelerator) -> Profile:
    """Estimate the profile of a step of ``batch`` samples of shape ``inputs``; ``module`` has no
    contents (torch's device ``meta``).

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
        f"from {roofline.flops / batch / 1e9:.2f} GFLOP a sample and memory traffic, for a "
        f"{accelerator.name} ({accelerator.flops / 1e12:g} TFLOP/s float32, "
        f"{accelerator.bandwidth / 1e9:g} GB/s)"
    )
    return Profile(tuple(layers), "estimated", about)


def accelerator_of(name: str, where: str = "--estimate") -> Accelerator:
    """Raises InputError for one that is not known."""
    if name not in ACCELERATORS:
        known = ", ".join(ACCELERATORS)
        raise InputError(f"unknown accelerator {name!r}", where=where, hint=f"Known: {known}")
    return ACCELERATORS[name]


def profile_of(job: Job, names: Sequence[str], measure: Callable[[], Profile]) -> Profile | None:
    """How long each of the layers ``names`` is to compute; None where nothing is held.

    ``names``: of the model's ``Layout.layers()``. ``measure``: called only where the scenario says
    `measured`, or nothing. In all it takes what a usual step takes by ``job.train.pace``, which a
    profile from a file has set where the scenario does not. Raises InputError for a profile of
    another model.
    """
    if (times := step_times(job)) is None:
        return None
    pace_s = times.usual_s
    if job.train.profile == "constant":
        return Profile.constant(names, pace_s)
    if job.profile is not None:
        return job.profile.of(names).scaled(pace_s)
    if job.train.profile not in (None, "measured"):
        raise InputError(f"the job lacks the times of its profile {job.train.profile!r}")
    return _timed(measure().of(names), names, pace_s)


def _timed(found: Profile, names: Sequence[str], pace_s: float) -> Profile:
    """Scaled. On a virtual clock computation takes no time, so that nothing can be measured: all
    layers alike then."""
    if found.total_s > 0:
        return found.scaled(pace_s)
    constant = Profile.constant(names, pace_s)
    return replace(constant, about="the same time for every layer: here computation takes none")
