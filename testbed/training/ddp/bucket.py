"""A bucket of DistributedDataParallel: its gradient out, the mean of all ranks' back into it, its
parameters by name, and marks of those that no rank used.

DistributedDataParallel leaves their gradients alone, whatever a hook returns for them: what was
sent of their residuals would be lost. Each message therefore marks the parameters whose gradient is
all zeros at its sender. What all ranks have marked is taken out of the messages, and goes back to
who sent it.

Marks are one bit each, the first parameter's the lowest of the first byte, filled up to 8 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from random import Random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from testbed.algorithm import Algorithm
from testbed.compatibility import check, resolve
from testbed.compress.base import BufferPool, Recipe, Sparse
from testbed.compress.compressor import Compressor
from testbed.compress.layout import Layout, Part
from testbed.compress.memory import RESIDUAL, key, parameters_of
from testbed.compress.payload import read_message
from testbed.control.base import controllers
from testbed.errors import ExperimentError, GradientError, InputError, WireError
from testbed.node import Buffer
from testbed.training.ddp.gather import GatherChannel, GatherKind, HookAverager, message_device


def marks_bytes(parts: int) -> int:
    """Length of the marks of so many parameters; payloads behind it stay aligned."""
    return -(-parts // 64) * 8


def idle_marks(gradients: Sequence[Tensor], parts: int) -> bytes:
    """The marks of a message; without ``gradients`` none is set."""
    marks = np.zeros(8 * marks_bytes(parts), np.bool_)
    marks[: len(gradients)] = [not bool(gradient.any()) for gradient in gradients]
    return np.packbits(marks, bitorder="little").tobytes()


def idle_everywhere(marks: Sequence[memoryview], layout: Layout) -> list[Part]:
    """The parameters that all have marked. Raises WireError for a message that ends before."""
    if any(len(own) != marks_bytes(len(layout.parts)) for own in marks):
        raise WireError(f"a message ends within the marks of {len(layout.parts)} parameters")
    common = np.bitwise_and.reduce([np.frombuffer(own, np.uint8) for own in marks])
    bits = np.unpackbits(common, bitorder="little")
    return [part for part, marked in zip(layout, bits, strict=False) if marked]


def without(message: Sparse, parts: Sequence[Part]) -> Sparse:
    """``message`` with nothing in it of ``parts``."""
    if message.indices is None:
        values = message.values.clone()
        for part in parts:
            values[part.offset : part.offset + part.size] = 0.0
        return replace(message, values=values)
    keep = torch.ones_like(message.indices, dtype=torch.bool)
    for part in parts:
        keep &= ~_inside(message.indices, part)
    return Sparse(message.size, message.indices[keep], message.values[keep])


def restored(state: Mapping[str, Any], message: Sparse, parts: Sequence[Part]) -> dict[str, Any]:
    """A compressor's state as if nothing of ``parts`` had been sent in ``message``."""
    memory = dict(state["memory"])
    for part in parts:
        for name in {part.name, key(part.name, RESIDUAL)} & {*memory}:
            residual = memory[name]
            sent = _dense(message, part).view(residual.shape)
            memory[name] = residual + sent.to(residual.device)
    return {**state, "memory": memory}


def _dense(message: Sparse, part: Part) -> Tensor:
    """Return the values of ``part`` in ``message``: float32 (part.size,)."""
    if message.indices is None:
        return message.values[part.offset : part.offset + part.size]
    inside = _inside(message.indices, part)
    values = message.values.new_zeros(part.size)
    values[message.indices[inside] - part.offset] = message.values[inside]
    return values


def _inside(indices: Tensor, part: Part) -> Tensor:
    return (indices >= part.offset) & (indices < part.offset + part.size)


_NAME = "bucket"


@dataclass(frozen=True, slots=True)
class BucketTurn:
    """The values that are the same for all buckets of a step."""

    step: int
    density: float
    rng: Random
    """This rank's."""
    reply_rng: Random
    """The same on all ranks."""


class DdpBucket:
    """Compresses, sends, receives and averages: one for each of DDP's buckets. ``find_unused``:
    gradients that are all zeros may be of parameters that were not used."""

    def __init__(
        self,
        layout: Layout,
        row: Algorithm,
        group: dist.ProcessGroup,
        device: torch.device,
        *,
        find_unused: bool,
        seed: int,
    ) -> None:
        self.layout = layout
        self._find_unused, self._rank = find_unused, group.rank()
        self._compressor = Compressor(row.recipe, {_NAME: layout})
        self._averager = HookAverager(row, layout, group.size())
        most_bytes = 4096 * (1 + len(self.names)) + 64 * layout.size  # more than any coding takes
        self._channel = GatherChannel(
            group, message_device(group, device), _mark(layout, row, seed), most_bytes
        )
        self._flat: Tensor | None = None
        self._scratch = BufferPool()
        self._failure: Exception | None = None
        self.sent_count = self.payload_bytes = 0

    @property
    def names(self) -> list[str]:
        """Its parameters."""
        return [part.name for part in self.layout]

    @property
    def message_bytes(self) -> int:
        """Length of the last message, with header and padding."""
        return self._channel.message_bytes

    def launch(self, bucket: GradBucket, turn: BucketTurn) -> Future[Tensor]:
        """Compress its gradient and begin to send it. The future is done when ``land`` is. What
        goes wrong here is sent as well, so that all ranks learn of it instead of waiting."""
        self._out, self._failure = bucket.buffer(), None
        device = self._out.device
        self._future: Future[Tensor] = Future(devices=[] if device.type == "cpu" else [device])
        kind, body = self._message(bucket, turn)
        self._channel.send(kind, turn.step, body)
        return self._future

    def land(self, turn: BucketTurn) -> None:
        """Receive everybody's message, and set the gradient to their mean, the same bits on all
        ranks.

        Raises, on all ranks alike, GradientError naming rank and parameter when one refused its
        gradient; ExperimentError naming the rank when one failed otherwise, there what it failed
        with.
        """
        bodies = self._checked(self._channel.receive())
        marked = marks_bytes(len(self.names))
        idle = idle_everywhere([body[:marked] for body in bodies], self.layout)
        payloads = [body[marked:] for body in bodies]
        self._averager.put(self._messages(payloads, idle), self._out, turn.reply_rng)
        self._future.set_result(self._out)

    def state(self) -> dict[str, Any]:
        """Return the state that is carried from step to step."""
        return {**self._compressor.state(), "reply": self._averager.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what is of its parameters."""
        self._compressor.load(state)
        self._averager.load(state["reply"])

    def _message(self, bucket: GradBucket, turn: BucketTurn) -> tuple[GatherKind, Sequence[Buffer]]:
        """Return the kind and the body to send. The payload holds until the next one is made."""
        try:
            packed = self._compressor.compress(
                _NAME, self._float32(self._out), turn.density, turn.rng
            )
            marks = idle_marks(bucket.gradients() if self._find_unused else [], len(self.names))
        except GradientError as error:
            return GatherKind.REFUSED, [str(error).encode()]
        except Exception as error:
            self._failure = error
            return GatherKind.FAILED, [f"{type(error).__name__}: {error}".encode()[:1000]]
        self.sent_count, self.payload_bytes = packed.count, len(packed.payload)
        return GatherKind.PAYLOAD, [marks, packed.payload]

    def _float32(self, given: Tensor) -> Tensor:
        """``given`` itself, or its values in a buffer that is kept."""
        if given.dtype == torch.float32:
            return given
        if self._flat is None:
            self._flat = torch.empty_like(given, dtype=torch.float32)
        return self._flat.copy_(given)

    def _checked(self, received: Sequence[tuple[GatherKind, memoryview]]) -> list[memoryview]:
        if self._failure is not None:
            raise self._failure
        for rank, (kind, body) in enumerate(received):
            if kind is not GatherKind.PAYLOAD:
                text = bytes(body).decode(errors="replace")
                error = GradientError if kind is GatherKind.REFUSED else ExperimentError
                raise error(f"rank {rank}: {text}")
        return [body for _, body in received]

    def _messages(self, payloads: Sequence[memoryview], idle: Sequence[Part]) -> Iterator[Sparse]:
        """Yield the messages by rank; each lies where the next one will."""
        for rank, payload in enumerate(payloads):
            try:
                message = read_message(payload, self.layout, self._scratch)
            except WireError as error:
                raise WireError(f"rank {rank}, gradient of {self.names[0]!r}…: {error}") from error
            if idle and rank == self._rank:
                self._compressor.load(restored(self._compressor.state(), message, idle))
            yield without(message, idle) if idle else message


def _mark(layout: Layout, row: Algorithm, seed: int) -> int:
    """A number for what all ranks must have alike: the parameters, the algorithm, the seed."""
    alike = asdict(replace(row, name="", about="", options={}))
    text = "\n".join([*(f"{part.name} {part.shape}" for part in layout), repr(alike), str(seed)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Types that are compressed: float32 holds all of their values exactly."""


class Parameters:
    """Names for the tensors that a bucket tells of, and the order of their elements in it.

    A bucket and its layout hold elements as they lie in memory: in ``channels_last`` that is not
    the order of dimensions, which checkpoints have.
    """

    def __init__(self, named: Iterable[tuple[str, Tensor]]) -> None:
        self._tensors = {name: _checked(name, tensor) for name, tensor in named}
        self._names = {id(tensor): name for name, tensor in self._tensors.items()}

    def tensors(self) -> Iterable[Tensor]:
        """All of them."""
        return self._tensors.values()

    def layout(self, tensors: Sequence[Tensor]) -> Layout:
        """A bucket's layout. Raises InputError for a parameter that is not among those given."""
        return Layout.of((self._name(t), _in_memory(t)) for t in tensors)

    def to_checkpoint(self, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Vectors by name (``<name>`` or ``<name>/<vector>``), each in its parameter's shape."""
        return {key: self._by_dimensions(self._owner(key), own) for key, own in memory.items()}

    def from_checkpoint(self, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The reverse, on the parameters' devices. Raises InputError for what is no parameter's."""
        return {key: self._by_memory(self._owner(key), own) for key, own in memory.items()}

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

    def _by_dimensions(self, name: str, vector: Tensor) -> Tensor:
        order = _order(self._tensors[name])
        back = sorted(range(len(order)), key=order.__getitem__)
        return vector.permute(back).contiguous()

    def _by_memory(self, name: str, vector: Tensor) -> Tensor:
        tensor = self._tensors[name]
        if vector.shape != tensor.shape:
            raise InputError(
                f"{name!r} has the shape {tuple(tensor.shape)}, and what is remembered of it "
                f"{tuple(vector.shape)}"
            )
        return vector.to(tensor.device).permute(_order(tensor)).contiguous()


def _checked(name: str, tensor: Tensor) -> Tensor:
    if tensor.requires_grad and tensor.dtype not in FLOATS:
        raise InputError(
            f"parameter {name!r} is {tensor.dtype}, and gradients are compressed as float32",
            hint=f"Parameters can be {', '.join(map(str, FLOATS))}",
        )
    return tensor


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Dimensions from the longest stride on; as they are where a bucket keeps them so."""
    straight = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return straight
    strides = tensor.stride()
    order = tuple(sorted(straight, key=lambda dimension: -strides[dimension]))
    return order if tensor.permute(order).is_contiguous() else straight


def _in_memory(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape[dimension] for dimension in _order(tensor))


def row_of(algorithm: str | Algorithm | Recipe, density: float | None) -> Algorithm:
    """The checked row. Raises InputError where ``density``, exchange or controller do not suit."""
    row = resolve(algorithm) if isinstance(algorithm, str) else algorithm
    if isinstance(row, Recipe):
        row = _of_recipe(row)
    if row.exchange != "ps":
        raise InputError(
            f"algorithm {row.name!r} travels by {row.exchange!r}",
            hint="With DistributedDataParallel all ranks send their gradients to all others",
        )
    if density is not None:
        if row.controller != "fixed":
            raise InputError(
                f"algorithm {row.name!r}: its controller {row.controller!r} chooses the density"
            )
        row = replace(row, options={**row.options, "density": density})
    check(row)
    if wanted := controllers.get(row.controller)(seed=0, **row.options).watches:
        raise InputError(
            f"algorithm {row.name!r}: its controller {row.controller!r} watches "
            f"{', '.join(sorted(wanted))}",
            hint="A hook does not tell of that; run it in the testbed",
        )
    return row


def _of_recipe(recipe: Recipe) -> Algorithm:
    return Algorithm(
        "recipe",
        selector=recipe.selector.name,
        selector_options=dict(recipe.selector.options),
        values=recipe.values.name,
        values_options=dict(recipe.values.options),
        memory=recipe.memory.name,
        memory_options=dict(recipe.memory.options),
        buckets="layer" if recipe.layers else "whole",
        dense_below=recipe.dense_below,
    )


@dataclass(frozen=True, slots=True)
class HookReport:
    """Counts of one step, or sums over several. Bytes are of this rank."""

    steps: int = 0
    elements: int = 0
    """Gradient elements, sent or not."""
    sent_count: int = 0
    """Elements that this rank sent."""
    payload_bytes: int = 0
    """Bytes that compression made of its gradients."""
    message_bytes: int = 0
    """The same as it was handed over to be sent, with headers, filled up to the common length."""
    bytes_sent: int = 0
    """Bytes that left it in all-gathers by ring: each message passes through all other ranks."""
    bytes_received: int = 0
    """Bytes that reached it: a message of every other rank."""
    dense_bytes: int = 0
    """Bytes that a ring all-reduce of the same gradients in float32 would send, and receive."""
    delay_s: float = 0.0
    """From the first message to the last mean, where the state was given a clock."""

    @property
    def density(self) -> float:
        """Share of the elements that this rank sent."""
        return self.sent_count / self.elements if self.elements else 0.0

    def __add__(self, other: HookReport) -> HookReport:
        names = [field.name for field in fields(self)]
        return HookReport(**{name: getattr(self, name) + getattr(other, name) for name in names})


VECTORS = ("memory", "reply")
"""Parts of a state that are tensors by ``<name>`` or ``<name>/<vector>`` of a parameter."""


class CarriedState:
    """States (``memory``, ``learnt`` and ``kind`` as a Compressor's, and ``reply``) that wait."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._vectors: dict[str, dict[str, Tensor]] = {part: {} for part in VECTORS}
        self._learnt: list[Mapping[str, Any]] = []

    def add(self, state: Mapping[str, Any]) -> None:
        """Take in a bucket's or a checkpoint's state."""
        for part in VECTORS:
            self._vectors[part].update(state[part])
        newer = [entry["parts"] for entry in state["learnt"]]
        self._learnt = [entry for entry in self._learnt if entry["parts"] not in newer]
        self._learnt.extend(state["learnt"])

    def take(self, layout: Layout) -> dict[str, Any]:
        """Hand over what belongs to the parameters of ``layout``. What other bucketings of them
        have learnt stays here as well: buckets like theirs may yet come."""
        order = [part.name for part in layout]
        names = {*order}
        taken: dict[str, Any] = {"kind": self._kind}
        for part, vectors in self._vectors.items():
            taken[part] = {key: vectors.pop(key) for key in parameters_of(vectors, names)}
        taken["learnt"] = [entry for entry in self._learnt if names & {*entry["parts"]}]
        self._learnt = [entry for entry in self._learnt if entry["parts"] != order]
        return taken

    def together(self, states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """One state of what waits and of ``states``."""
        whole = CarriedState(self._kind)
        for state in (self._state(), *states):
            whole.add(state)
        return whole._state()

    def _state(self) -> dict[str, Any]:
        return {"kind": self._kind, "learnt": [*self._learnt], **self._vectors}
