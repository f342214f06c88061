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
from itertools import zip_longest
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
from testbed.training.layer_hooks import LayerHooks
from testbed.training.pacing import step_times
from testbed.training.replica import FlatModel

WARM_UP = 4
"""The first passes pay for what is loaded, compiled and allocated."""
PASSES = 11


class HostStopwatch:
    """Takes the time by a clock of the host: of what computes in the thread that calls it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._marks_s: list[float] = []

    def mark(self) -> None:
        """Take the time now."""
        self._marks_s.append(self._now())

    def read(self) -> list[float]:
        """Return the seconds from the first mark to each, in order; there are none after it."""
        seconds = [mark_s - self._marks_s[0] for mark_s in self._marks_s]
        self._marks_s.clear()
        return seconds


class CudaStopwatch:
    """As ``HostStopwatch``, by events in the device's own queue, which is far behind the host.
    Nothing waits for anything until it is read. Events are used again: to make one takes time."""

    def __init__(self) -> None:
        self._marks: list[torch.cuda.Event] = []
        self._unused: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """See ``HostStopwatch``."""
        event = self._unused.pop() if self._unused else _event()
        event.record()
        self._marks.append(event)

    def read(self) -> list[float]:
        """See ``HostStopwatch``."""
        self._marks[-1].synchronize()
        seconds = [self._marks[0].elapsed_time(event) / 1e3 for event in self._marks]
        self._unused += self._marks
        self._marks = []
        return seconds


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


class TimedPasses:
    """One forward and backward pass of ``flat``'s model at a time, with the times of its layers."""

    def __init__(self, flat: FlatModel, stopwatch: HostStopwatch | CudaStopwatch) -> None:
        self._flat, self._stopwatch = flat, stopwatch
        self.layers = flat.layout.layers()
        self._entered: list[int] = []
        """Layers whose forward pass has begun, by number."""
        self._left = 0
        """How often the model's forward pass has ended."""
        self._ready: list[int] = []
        """Layers a parameter's gradient of which was complete, by number."""

    def times(self, compute: Callable[[], object]) -> list[LayerTimes]:
        """Measure the layers of ``compute``, which makes one forward and one backward pass; in the
        order of the forward pass. Raises InputError for a model whose layers do not follow one
        another, forward and, in reverse, backward."""
        self._entered, self._left, self._ready = [], 0, []
        hooks = LayerHooks(
            self._flat.module,
            self.layers,
            self._gradient_ready,
            begins=self._begins,
            forward_ends=self._forward_ends,
        )
        try:
            self._stopwatch.mark()
            compute()
        finally:
            hooks.remove()
        marks_s = self._stopwatch.read()
        self._check()
        return self._between(marks_s)

    def _begins(self, number: int) -> None:
        self._entered.append(number)
        self._stopwatch.mark()

    def _forward_ends(self) -> None:
        self._left += 1
        self._stopwatch.mark()

    def _gradient_ready(self, number: int, _: int) -> None:
        self._ready.append(number)
        self._stopwatch.mark()

    def _check(self) -> None:
        names, count = [layer.name for layer in self.layers], len(self.layers)
        if self._left != 1:
            raise _disorder(f"its forward pass is made {self._left} times in a step")
        _in_order(self._entered, range(count), names, "forward")
        last = [n for i, n in enumerate(self._ready) if self._ready[i + 1 : i + 2] != [n]]
        _in_order(last, range(count - 1, -1, -1), names, "backward")

    def _between(self, marks_s: Sequence[float]) -> list[LayerTimes]:
        """The marks: the begin, each layer's forward pass, its end, each parameter's gradient."""
        count = len(self.layers)
        forward_s = [marks_s[0], *marks_s[2 : count + 2]]
        ready_s = {number: marks_s[count + 2 + i] for i, number in enumerate(self._ready)}
        ready_s[count] = marks_s[count + 1]
        return [
            LayerTimes(layer.name, forward_s[n + 1] - forward_s[n], ready_s[n] - ready_s[n + 1])
            for n, layer in enumerate(self.layers)
        ]


def _in_order(
    actual: Sequence[int], expected: Sequence[int], names: Sequence[str], direction: str
) -> None:
    """Raises InputError at the first layer that is not where its parameters are."""
    for wrong, right in zip_longest(actual, expected):
        if wrong != right:
            came = "nothing" if wrong is None else f"layer {names[wrong]!r}"
            due = "nothing more" if right is None else f"layer {names[right]!r}"
            raise _disorder(f"in its {direction} pass {came} came where {due} was to")


def _disorder(what: str) -> InputError:
    return InputError(
        f"the model cannot be timed layer by layer: {what}",
        where="train.model",
        hint="Let every module with parameters compute once, in the order of the parameters; or "
        "use `profile: constant`",
    )


def measure(
    flat: FlatModel,
    compute: Callable[[], object],
    now: Callable[[], float],
    *,
    passes: int = PASSES,
    warm_up: int = WARM_UP,
    of_passes: Callable[[list[float]], float] = median,
    about: str = "measured here",
) -> Profile:
    """Measure the profile of ``compute``: a forward and a backward pass of ``flat``'s model.

    Whatever else it does before is the first layer's. Gradients are added to ``flat.gradients``.
    One pass is enough where it takes no time, on a virtual clock. ``of_passes``: the time that
    counts of a layer's. Raises InputError for a model whose layers do not follow one another.
    """
    device = flat.parameters.device
    timed = TimedPasses(flat, CudaStopwatch() if device.type == "cuda" else HostStopwatch(now))
    first = timed.times(compute)
    if not any(layer.forward_s or layer.backward_s for layer in first):
        return Profile(tuple(first), "measured", about)
    for _ in range(warm_up - 1):
        timed.times(compute)
    by_layer = zip(*(timed.times(compute) for _ in range(passes)), strict=True)
    layers = tuple(
        LayerTimes(
            times[0].name,
            of_passes([one_pass.forward_s for one_pass in times]),
            of_passes([one_pass.backward_s for one_pass in times]),
        )
        for times in by_layer
    )
    return Profile(layers, "measured", about)


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
    """The same for 3 × 3 convolutions of stride 1, with up to 2.25 times fewer products."""
    streaming: float
    """Share of ``bandwidth`` that kernels reach that only read and write."""
    launch_s: float
    """Seconds that a kernel takes beside its work."""


ACCELERATORS: Mapping[str, Accelerator] = {
    "v100": Accelerator("V100-class GPU", 15.7e12, 900e9, 0.7, 1.4, 0.8, 5e-6),
}
"""Accelerators by name. V100: NVIDIA's data sheet for SXM2; the shares are checked against
published throughput (docs/how-to/profiles.md)."""

_READS_AGAIN = {
    "native_group_norm": 1.5,
    "native_group_norm_backward": 5 / 3,
    "native_batch_norm": 1.5,
    "native_batch_norm_backward": 5 / 3,
    "cudnn_batch_norm": 1.5,
}
"""Normalisations read their input once for the statistics and once more to use them."""
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


class Roofline(TorchDispatchMode):
    """While it is entered, ``elapsed_s`` grows by every operation's time on ``accelerator``."""

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
    """Return whether a convolution suits Winograd's algorithm; few channels gain nothing."""
    if name not in ("convolution", "convolution_backward"):
        return False
    weight, stride = (args[1], args[3]) if name == "convolution" else (args[2], args[4])
    plain = tuple(weight.shape[2:]) == (3, 3) and set(stride) == {1}
    return plain and min(weight.shape[:2]) >= 16


def estimate(
    module: nn.Module, inputs: tuple[int, ...], batch: int, accelerator: Accelerator
) -> Profile:
    """Estimate the profile of a step of ``batch`` samples of shape ``inputs``; ``module`` is on
    torch's device ``meta``. Raises InputError for a model whose layers do not follow one
    another."""
    meta = torch.device("meta")
    flat = FlatModel(module, meta)
    x = torch.empty((batch, *inputs), device=meta)
    y = torch.empty(batch, dtype=torch.int64, device=meta)
    roofline = Roofline(accelerator)
    passes = TimedPasses(flat, HostStopwatch(lambda: roofline.elapsed_s))
    with roofline:
        layers = passes.times(lambda: cross_entropy(flat.forward(x), y).backward())
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

    ``measure``: called only where the scenario says `measured`, or nothing. In all it takes what a
    usual step takes by ``job.train.pace``, which a profile from a file has set where the scenario
    does not. Raises InputError for a profile of another model.
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
    return _scaled(measure().of(names), names, pace_s)


def _scaled(measured: Profile, names: Sequence[str], pace_s: float) -> Profile:
    """Scaled. On a virtual clock computation takes no time: all layers are alike then."""
    if measured.total_s > 0:
        return measured.scaled(pace_s)
    constant = Profile.constant(names, pace_s)
    return replace(constant, about="the same time for every layer: here computation takes none")
