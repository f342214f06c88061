"""One copy of the model: its device, parameters and gradients as flat vectors, and SGD on them,
the same on every node.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, from_numpy

from testbed.compress.compressor import Compressor
from testbed.compress.gradient_stats import refuse
from testbed.compress.layout import Layout, Shard, pieces
from testbed.errors import MachineError, WireError
from testbed.node import Buffer
from testbed.scenario.model import Optimizer
from testbed.training.job import Job
from testbed.training.models.base import build

if TYPE_CHECKING:
    from torch import nn


def configure_torch(device: str, threads: int) -> torch.device:
    """Make this process compute deterministically with ``threads`` threads; return the device.
    Raises MachineError when it is not there. All nodes that share the process ask for the same."""
    if device == "cuda":
        # cuBLAS is deterministic only with a fixed workspace, chosen before its first use
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if not torch.cuda.is_available():
            raise MachineError(
                "device 'cuda' was asked for, and PyTorch sees no CUDA device",
                fix="Use `device: cpu`, or install a CUDA build of PyTorch and give the node a GPU",
            )
    torch.set_num_threads(threads)
    # ``use_deterministic_algorithms`` does the same for us, and imports the whole compiler for
    # several seconds
    torch.set_deterministic_debug_mode("error")
    # costs time, and nothing reads it
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    return torch.device(device)


def synchronise(device: torch.device) -> None:
    """Wait until ``device`` has done all that this thread has queued, so that a clock read after it
    is right."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a queue of its own for work beside the computation, which goes before it where the
    device has to choose; None where there are none."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=-1)


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[None]:
    """Within it this thread queues what it computes on ``stream``; None: where it did before."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def queue_after(stream: torch.cuda.Stream | None) -> None:
    """Let what this thread queues from now on come after all that ``stream`` has been given."""
    if stream is not None:
        torch.cuda.current_stream(stream.device).wait_stream(stream)


class DeviceMark:
    """An instant of a device's work, as ``DeviceClock.mark`` noted it."""

    def __init__(
        self,
        noted_s: float,
        event: torch.cuda.Event | None = None,
        read: Callable[[torch.cuda.Event], float] | None = None,
    ) -> None:
        self._at_s, self._event, self._read = noted_s, event, read

    def wait(self) -> float:
        """Block until the device has come so far; when it had, by the clock. For one thread."""
        if self._event is not None and self._read is not None:
            self._event.synchronize()
            self._at_s = max(self._at_s, self._read(self._event))
            self._event = None
        return self._at_s


_COMPARISONS = 3


class DeviceClock:
    """Tells by a node's clock (``now``) when ``device`` came to an instant of its work. Whoever
    queues that work is not held up.

    Instants are events of the device, whose times are compared with that of one which the host has
    waited for. Where there are no events, or the node's clock is virtual and stands still while the
    device works, an instant is when the device has done all that it was given: it is waited for.
    """

    def __init__(self, now: Callable[[], float], device: torch.device) -> None:
        self._now, self._device, self._stream = now, device, side_stream(device)
        self._reference: tuple[torch.cuda.Event, float] | None = None

    def adjust(self) -> None:
        """Compare both clocks, which drift apart. Nothing that the device has to do is waited
        for."""
        if self._stream is None:
            return
        compared = [self._compare(self._stream) for _ in range(_COMPARISONS)]
        apart_s, at_s, event = min(compared, key=itemgetter(0))
        self._reference = (event, at_s) if apart_s > 0 else None

    def mark(self) -> DeviceMark:
        """The instant at which the device has done what this thread has queued so far."""
        if self._reference is None:
            synchronise(self._device)
            return DeviceMark(self._now())
        event, (reference, reference_s) = _timed(blocking=True), self._reference
        noted_s = self._now()  # it cannot come before it is queued
        event.record(torch.cuda.current_stream(self._device))

        def read(event: torch.cuda.Event) -> float:
            at_s = reference_s + float(reference.elapsed_time(event)) / 1e3
            return min(at_s, self._now())

        return DeviceMark(noted_s, event, read)

    def _compare(self, stream: torch.cuda.Stream) -> tuple[float, float, torch.cuda.Event]:
        """An event with the instant that it came, by the clock, in a span of so many seconds."""
        event, before_s = _timed(blocking=False), self._now()
        event.record(stream)
        event.synchronize()
        after_s = self._now()
        return after_s - before_s, (before_s + after_s) / 2, event


def _timed(*, blocking: bool) -> torch.cuda.Event:
    """``blocking``: who waits for it sleeps."""
    return torch.cuda.Event(enable_timing=True, blocking=blocking)


_ALL = slice(None)


class DeviceStaging:
    """Where a received vector is decoded: page-locked host memory in front of an accelerator.
    ``room``: float32 (size,), to be written; ``deliver`` gives its contents on the device. On the
    CPU both are the same tensor."""

    def __init__(self, size: int, device: torch.device) -> None:
        remote = device.type != "cpu"
        self._host = torch.zeros(size, pin_memory=remote)
        self._device = torch.empty(size, device=device) if remote else self._host
        self._copied: dict[tuple[int, int], torch.cuda.Event] = {}
        """When the elements from one to another have been delivered."""

    def room(self, elements: slice = _ALL) -> Tensor:
        """The host's memory of the vector, or of that part of it, once the device has read what was
        delivered of it."""
        begin, end, _ = elements.indices(len(self._host))
        for (first, last), copied in list(self._copied.items()):
            if first < end and begin < last:
                copied.synchronize()
        return self._host[elements]

    def deliver(self, elements: slice = _ALL) -> Tensor:
        """The vector, or that part of it, for what this thread queues on the device; valid until
        the next time. The host does not wait for the copy."""
        if self._device is not self._host:
            self._device[elements].copy_(self._host[elements], non_blocking=True)
            begin, end, _ = elements.indices(len(self._host))
            stream = torch.cuda.current_stream(self._device.device)
            self._copied[begin, end] = stream.record_event()
        return self._device[elements]


class FlatModel:
    """``module`` on ``device``, its parameters and their gradients views into two flat vectors.

    ``parameters``, ``gradients``: float32 (size,), contiguous, in the order of
    ``module.named_parameters()``. Nothing is allocated per step: backward adds into the views.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        named = list(module.named_parameters())
        self.module = module.to(device)
        self.size = sum(parameter.numel() for _, parameter in named)
        self.parameters = torch.empty(self.size, device=device)
        self.gradients = torch.zeros(self.size, device=device)
        self.layout = Layout.of((name, tuple(parameter.shape)) for name, parameter in named)
        for part, (_, parameter) in zip(self.layout, named, strict=True):
            elements = slice(part.offset, part.offset + part.size)
            values = self.parameters[elements].view(parameter.shape)
            values.copy_(parameter.detach())
            parameter.data = values
            parameter.grad = self.gradients[elements].view(parameter.shape)

    def forward(self, x: Tensor) -> Tensor:
        """Logits float32 (batch, classes) for ``x`` (batch, *inputs)."""
        logits: Tensor = self.module(x)
        return logits


def parameter_hash(flat: Tensor) -> str:
    """32 hexadecimal digits that are equal exactly when all bits of ``flat`` (any device) are."""
    return blake2b(flat.detach().cpu().numpy().data, digest_size=16).hexdigest()


class Sgd:
    """g ← g + λ·x;  v ← μ·v + g;  x ← x − η·v (with Nesterov: x − η·(g + μ·v)); as
    ``torch.optim.SGD``.

    Products are rounded before they are added, never fused into one instruction, so that replicas
    stay equal bit by bit on different processors and accelerators.
    """

    def __init__(self, settings: Optimizer, parameters: Tensor) -> None:
        self._settings, self._parameters = settings, parameters
        self._velocity = parameters.new_zeros(parameters.shape) if settings.momentum else None
        self._scratch = parameters.new_empty(parameters.shape)

    @property
    def velocity(self) -> Tensor | None:
        """v, float32 (size,); None without momentum."""
        return self._velocity

    def apply(self, gradient: Tensor, epoch: int, elements: slice = _ALL) -> None:
        """One step with ``gradient`` (float32 (size,), consumed) for ``elements`` in ``epoch``."""
        settings, scratch = self._settings, self._scratch[elements]
        parameters = self._parameters[elements]
        if settings.weight_decay:
            gradient.add_(scratch.copy_(parameters).mul_(settings.weight_decay))
        direction = gradient
        if self._velocity is not None:
            velocity = self._velocity[elements]
            velocity.mul_(settings.momentum).add_(gradient)
            direction = velocity
            if settings.nesterov:
                direction = gradient.add_(scratch.copy_(velocity).mul_(settings.momentum))
        rate = learning_rate(settings, epoch)
        parameters.sub_(scratch.copy_(direction).mul_(rate))


def learning_rate(settings: Optimizer, epoch: int) -> float:
    """η in ``epoch`` (counted from 1) under the schedule."""
    schedule = settings.schedule
    if schedule.name == "step":
        return float(settings.lr * schedule.gamma ** ((epoch - 1) // schedule.every))
    if schedule.name == "cosine":
        progress = min(epoch - 1, schedule.epochs) / schedule.epochs
        return settings.lr * (1 + math.cos(math.pi * progress)) / 2
    return settings.lr


class Replica:
    """Model, optimizer, and from payload to step. Initial parameters follow from the seed."""

    def __init__(self, job: Job) -> None:
        train = job.train
        self.device = configure_torch(job.device, job.threads)
        self.flat = FlatModel(build(train.model, train.task, train.width, job.seed), self.device)
        servers, bucket_bytes = max(1, job.servers), job.algorithm.bucket_bytes
        self.shards = pieces(self.flat.layout, servers, bucket_bytes)
        self._staging = DeviceStaging(self.flat.size, self.device)
        self._beside = side_stream(self.device)
        self._settings = train.optimizer
        self._optimizer = Sgd(self._settings, self.flat.parameters)
        self._codec = self.compressor(job)

    @property
    def parameters(self) -> Tensor:
        """All of them, float32 (size,)."""
        return self.flat.parameters

    def compressor(self, job: Job) -> Compressor:
        """A new compressor, its memory empty, that knows this model's parameters by name."""
        return Compressor(job.algorithm.recipe, {s.name: s.layout for s in self.shards})

    def decode(self, shard: Shard, payload: Buffer) -> None:
        """Take in a shard's update; ``apply`` makes the step of all. Raises WireError."""
        self._codec.decompress(shard.name, payload, self._staging.room(shard.span))

    def load_mean_gradient(self, mean: Buffer) -> None:
        """Take in the whole mean gradient, float32 (size,) as bytes. Raises WireError for another
        size, GradientError for a mean that is not finite."""
        expected, actual = 4 * self.flat.size, memoryview(mean).nbytes
        if actual != expected:
            raise WireError(f"a mean gradient has {expected} B, got {actual}")
        room = self._staging.room()
        room.numpy()[:] = np.frombuffer(mean, np.float32)
        refuse(room, self.flat.layout, what="mean gradient")

    def load_parameters(self) -> None:
        """x ← what was decoded: parameters, not a gradient."""
        self.flat.parameters.copy_(self._staging.deliver())
        synchronise(self.device)

    def state(self) -> bytes:
        """All that another replica needs to go on: x, and v where there is momentum, as float32."""
        return b"".join(vector.cpu().numpy().tobytes() for vector in self._vectors())

    def load_state(self, state: Buffer) -> None:
        """Be as the replica whose ``state`` it is. Raises WireError for another size."""
        vectors, size = self._vectors(), self.flat.size
        expected, actual = 4 * size * len(vectors), memoryview(state).nbytes
        if actual != expected:
            raise WireError(f"a replica's state has {expected} B, got {actual}")
        values = np.frombuffer(state, np.float32).reshape(len(vectors), size)
        for vector, own in zip(vectors, values, strict=True):
            vector.copy_(from_numpy(own.copy()))
        synchronise(self.device)

    def _vectors(self) -> list[Tensor]:
        velocity = self._optimizer.velocity
        return [self.flat.parameters, *([] if velocity is None else [velocity])]

    def apply(self, epoch: int) -> None:
        """x ← x − η·(what was decoded)."""
        self._optimizer.apply(self._staging.deliver(), epoch)
        synchronise(self.device)

    def apply_shard(self, shard: Shard, epoch: int) -> None:
        """``apply`` for what was decoded of ``shard``, alone, beside what the device computes with
        other parameters."""
        with on_stream(self._beside):
            self._optimizer.apply(self._staging.deliver(shard.span), epoch, shard.span)
            synchronise(self.device)

    def all_applied(self, epoch: int) -> None:
        """Every shard has been: nothing is left to do."""

    def warm_up(self, shard: Shard, payload: Buffer) -> None:
        """Do what ``decode`` and ``apply`` do once, to pay first-time costs, changing nothing."""
        self.decode(shard, payload)
        Sgd(self._settings, self.flat.parameters.clone()).apply(self._staging.deliver(), epoch=1)
        synchronise(self.device)

    def fingerprint(self) -> str:
        """Hash of the parameters."""
        return parameter_hash(self.flat.parameters)
