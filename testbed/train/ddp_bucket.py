"""One of DistributedDataParallel's buckets: its gradient out, the mean of all ranks' back into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from random import Random
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from testbed.algorithms import Algorithm
from testbed.compress.base import Sparse
from testbed.compress.compressor import Compressor
from testbed.compress.layers import read_message
from testbed.compress.layout import Layout, Part
from testbed.compress.payload import Scratch
from testbed.errors import ExperimentError, GradientError, WireError
from testbed.node import Buffer
from testbed.train.ddp_gather import Channel, Kind, Received, message_device
from testbed.train.ddp_idle import idle_everywhere, idle_marks, marks_bytes, restored, without
from testbed.train.ddp_mean import Mean

_NAME = "bucket"


class GradBucket(Protocol):
    """What is used of ``torch.distributed.GradBucket``."""

    def index(self) -> int:
        """Its number in this step, from 0 on."""
        ...

    def is_last(self) -> bool:
        """Whether no other follows in this step."""
        ...

    def buffer(self) -> Tensor:
        """All of its gradients, flat."""
        ...

    def gradients(self) -> list[Tensor]:
        """The same, one by one."""
        ...

    def parameters(self) -> list[Tensor]:
        """Whose they are, in the order of the buffer."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """What is the same for all buckets of a step."""

    step: int
    density: float
    rng: Random
    """This rank's."""
    reply_rng: Random
    """The same on all ranks."""


class DdpBucket:
    """Compresses, sends, receives and averages; one for each of DDP's buckets, for as long as it lasts.

    ``find_unused``: gradients that are all zeros may be of parameters that were not used.
    """

    def __init__(
        self, layout: Layout, row: Algorithm, group: dist.ProcessGroup, device: torch.device,
        *, find_unused: bool, seed: int,
    ) -> None:  # fmt: skip
        self.layout = layout
        self._find_unused, self._rank = find_unused, group.rank()
        self._compressor = Compressor(row.recipe, {_NAME: layout})
        self._mean = Mean(row, layout, group.size())
        self._channel = Channel(
            group,
            message_device(group, device),
            _mark(layout, row, seed),
            _most(layout.size, len(self.names)),
        )
        self._flat: Tensor | None = None
        self._scratch = Scratch()
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

    def launch(self, bucket: GradBucket, turn: Turn) -> Future[Tensor]:
        """Compress its gradient and begin to send it. The future is done when ``land`` is.

        What goes wrong here is sent as well, so that all ranks learn of it instead of waiting.
        """
        self._out, self._failure = bucket.buffer(), None
        self._future = _future(self._out.device)
        kind, body = self._message(bucket, turn)
        self._channel.send(kind, turn.step, body)
        return self._future

    def land(self, turn: Turn) -> None:
        """Receive everybody's message, and set the gradient to their mean, the same bits on all ranks.

        Raises, on all ranks alike, GradientError naming rank and parameter when one refused its
        gradient; ExperimentError naming the rank when one failed otherwise, there what it failed with.
        """
        received = self._channel.receive()
        self._check(received)
        marked = marks_bytes(len(self.names))
        idle = idle_everywhere([one.body[:marked] for one in received], self.layout)
        payloads = [one.body[marked:] for one in received]
        self._mean.put(self._messages(payloads, idle), self._out, turn.reply_rng)
        self._future.set_result(self._out)

    def state(self) -> dict[str, Any]:
        """What is carried from step to step."""
        return {**self._compressor.state(), "reply": self._mean.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what is of its parameters."""
        self._compressor.load(state)
        self._mean.load(state["reply"])

    def _message(self, bucket: GradBucket, turn: Turn) -> tuple[Kind, Sequence[Buffer]]:
        """What to send. The payload holds until the next one is made."""
        try:
            packed = self._compressor.compress(
                _NAME, self._float32(self._out), turn.density, turn.rng
            )
            marks = idle_marks(bucket.gradients() if self._find_unused else [], len(self.names))
        except GradientError as error:
            return Kind.REFUSED, [str(error).encode()]
        except Exception as error:
            self._failure = error
            return Kind.FAILED, [f"{type(error).__name__}: {error}".encode()[:1000]]
        self.sent_count, self.payload_bytes = packed.count, len(packed.payload)
        return Kind.PAYLOAD, [marks, packed.payload]

    def _float32(self, given: Tensor) -> Tensor:
        """``given`` itself, or its values in a buffer that is kept."""
        if given.dtype == torch.float32:
            return given
        if self._flat is None:
            self._flat = torch.empty_like(given, dtype=torch.float32)
        return self._flat.copy_(given)

    def _check(self, received: Sequence[Received]) -> None:
        if self._failure is not None:
            raise self._failure
        for rank, one in enumerate(received):
            if one.kind is not Kind.PAYLOAD:
                text = bytes(one.body).decode(errors="replace")
                error = GradientError if one.kind is Kind.REFUSED else ExperimentError
                raise error(f"rank {rank}: {text}")

    def _messages(self, payloads: Sequence[memoryview], idle: Sequence[Part]) -> Iterator[Sparse]:
        """By rank; each lies where the next one will."""
        for rank, payload in enumerate(payloads):
            message = self._read(rank, payload)
            if idle and rank == self._rank:
                self._compressor.load(restored(self._compressor.state(), message, idle))
            yield without(message, idle) if idle else message

    def _read(self, rank: int, payload: memoryview) -> Sparse:
        try:
            return read_message(payload, self.layout, self._scratch)
        except WireError as error:
            raise WireError(f"rank {rank}, gradient of {self.names[0]!r}…: {error}") from error


def _future(device: torch.device) -> Future[Tensor]:
    return Future(devices=[] if device.type == "cpu" else [device])


def _mark(layout: Layout, row: Algorithm, seed: int) -> int:
    """A number for what all ranks must have alike: the parameters, the algorithm, the seed."""
    alike = asdict(replace(row, name="", about="", options={}))
    text = "\n".join([*(f"{part.name} {part.shape}" for part in layout), repr(alike), str(seed)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _most(size: int, parts: int) -> int:
    """More bytes than any coding takes."""
    return 4096 * (1 + parts) + 64 * size
