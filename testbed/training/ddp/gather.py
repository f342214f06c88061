"""One bucket's messages from every rank to every rank, and their mean, as each rank works it out
for itself.

Lengths differ from rank to rank and from step to step, and an all-gather needs equal ones. So the
first all-gather of a step carries a header and as much of the message as the longest one of the
last steps took. Where one is longer, all ranks see that in its header, and a second all-gather
carries the rest.

Ranks must make their collectives in one order. The first ones are made as gradients become ready,
the second ones after all of them: nothing is made in a future's callback, which ranks run when they
like.

A header, little-endian: magic "NRWD", version (1), kind, 2 reserved bytes, step (8), bucket (8),
length (8).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from testbed.compress import kernels
from testbed.compress.base import BufferPool, Sparse
from testbed.compress.payload import decode
from testbed.errors import WireError
from testbed.node import Buffer
from testbed.training.averaging import UpdateEncoder

if TYPE_CHECKING:
    from torch import Tensor

    from testbed.algorithm import Algorithm
    from testbed.compress.layout import Layout


Bytes = NDArray[np.uint8]

_HEADER = struct.Struct("<4sBBxxQQQ")
HEADER_BYTES = _HEADER.size
_MAGIC, _VERSION = b"NRWD", 1
_WINDOW = 8
"""Steps that a bucket's capacity looks back on."""
_ALIGNMENT = 64
"""Capacities are multiples of this, so that values in a message can be read where they lie."""


class GatherKind(IntEnum):
    """The kind of a message."""

    PAYLOAD = 0
    REFUSED = 1
    """A sentence: which gradient cannot be sent."""
    FAILED = 2
    """A sentence: what else went wrong."""


class GatherChannel:
    """A bucket's messages. ``mark``: its number, the same on all ranks; ``most``: a length's
    bound."""

    def __init__(
        self, group: dist.ProcessGroup, device: torch.device, mark: int, most: int
    ) -> None:
        self._group, self._mark, self._most = group, mark, most
        self._first, self._second = _Round(group, device), _Round(group, device)
        self._lengths = deque([0], maxlen=_WINDOW)
        self._body: Sequence[Buffer] = ()
        self._step = 0
        self.message_bytes = 0
        """Bytes of the last message, header and padding included."""

    def send(self, kind: GatherKind, step: int, body: Sequence[Buffer]) -> None:
        """Begin to send the pieces of ``body``, which stay as they are until ``receive``."""
        self._step, self._body = step, body
        length, capacity = sum(map(len, body)), max(self._lengths)
        mine = self._first.outgoing(HEADER_BYTES + capacity)
        _HEADER.pack_into(mine.data, 0, _MAGIC, _VERSION, kind, step, self._mark, length)
        _copy(body, mine[HEADER_BYTES:], 0)
        self.message_bytes = mine.size
        self._first.launch()

    def receive(self) -> list[tuple[GatherKind, memoryview]]:
        """Kinds and bodies of all messages, in order of rank; they hold until the next ``send``.

        All ranks call this for their buckets in one order. Raises WireError when a rank sent
        something else, as it does when ranks train different models.
        """
        messages = self._first.wait()
        headers = [self._header(rank, row) for rank, row in enumerate(messages)]
        capacity, longest = max(self._lengths), max(length for _, length in headers)
        self._lengths.append(-(-longest // _ALIGNMENT) * _ALIGNMENT)
        parts = messages[:, HEADER_BYTES:]
        if longest > capacity:
            parts = np.concatenate([parts, self._rest(longest - capacity, capacity)], axis=1)
        return [
            (kind, memoryview(row)[:length])
            for (kind, length), row in zip(headers, parts, strict=True)
        ]

    def _rest(self, width: int, sent: int) -> Bytes:
        """Gather the bytes that follow the first ``sent`` bytes of each body."""
        mine = self._second.outgoing(width)
        _copy(self._body, mine, sent)
        self.message_bytes += mine.size
        self._second.launch()
        return self._second.wait()

    def _header(self, rank: int, row: Bytes) -> tuple[GatherKind, int]:
        magic, version, kind, step, mark, length = _HEADER.unpack_from(row.data)
        if (magic, version, step, mark) != (_MAGIC, _VERSION, self._step, self._mark):
            raise WireError(
                f"rank {rank} sent another bucket than this one of step {self._step}: "
                "the ranks must train the same model by the same algorithm with the same seed, and "
                "have made the same number of steps"
            )
        if kind not in set(GatherKind) or length > self._most:
            raise WireError(f"rank {rank} sent {length} B of kind {kind}, step {step}")
        return GatherKind(kind), length


class _Round:
    """One all-gather after another, each in the buffers of the last if it is as long."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device = group, device
        self._mine = torch.empty(0, dtype=torch.uint8)
        self._all = torch.empty((group.size(), 0), dtype=torch.uint8, device=device)
        self._sent: torch.Tensor = self._mine
        self._work: Any = None

    def outgoing(self, width: int) -> Bytes:
        """Where this rank's bytes are to be written."""
        if self._mine.numel() != width:
            self._mine = torch.zeros(width, dtype=torch.uint8)
            self._all = self._all.new_empty((self._group.size(), width))
        mine: Bytes = self._mine.numpy()
        return mine

    def launch(self) -> None:
        """Send them."""
        self._sent = self._mine.to(self._device)
        rows = list(self._all.unbind())
        self._work = dist.all_gather(rows, self._sent, group=self._group, async_op=True)

    def wait(self) -> Bytes:
        """The bytes of all, (ranks, width), on the host; they hold until the next ``launch``."""
        self._work.wait()
        gathered: Bytes = self._all.cpu().numpy()
        return gathered


def message_device(group: dist.ProcessGroup, device: torch.device) -> torch.device:
    """Where messages lie: on the host, with the payloads, if ``group`` can send from there."""
    carried = {pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")}
    return torch.device("cpu") if "cpu" in carried else device


def _copy(pieces: Sequence[Buffer], into: Bytes, begin: int) -> None:
    """Bytes from ``begin`` on of what the pieces are together, as many as there is room for."""
    at = -begin
    for piece in pieces:
        start, end = max(0, -at), min(len(piece), into.size - at)
        if start < end:
            into[at + start : at + end] = np.frombuffer(piece, np.uint8)[start:end]
        at += len(piece)


class HookAverager:
    """Messages added up in order of rank and divided by their number, as a parameter server does.

    Where the algorithm's server codes its reply inexactly (a majority vote, half precision), every
    rank does so too: all read the same mean, and go on as workers of a server would.
    """

    def __init__(self, row: Algorithm, layout: Layout, ranks: int) -> None:
        self._ranks = ranks
        self._total: Tensor | None = None
        exact = row.down == "fp32" and row.down_memory == "none" and row.down_density == 1
        self._encoder, self._scratch = None if exact else UpdateEncoder(row, layout), BufferPool()
        self._memory = None if self._encoder is None else self._encoder.memory

    def put(self, messages: Iterable[Sparse], out: Tensor, rng: Random) -> None:
        """Set ``out`` (n,), of any of the kinds of float, to the mean. Messages lie on the host;
        each is needed until the next one is asked for."""
        total = self._float32(out).zero_()
        if self._encoder is None:
            for message in messages:
                _add(message, total)
            total.div_(self._ranks)
        else:
            payload, _ = self._encoder.average(messages, self._ranks, rng)
            _add(decode(payload, total.numel(), self._scratch), total)
        if total is not out:
            out.copy_(total)

    def state(self) -> dict[str, Tensor]:
        """Return the values that replies have left out, by parameter."""
        return {} if self._memory is None else self._memory.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned; it lies on the host, as a server's does."""
        if self._memory is not None and state:
            self._memory.load({key: vector.cpu() for key, vector in state.items()})

    def _float32(self, out: Tensor) -> Tensor:
        if out.dtype == torch.float32:
            return out
        if self._total is None:
            self._total = torch.empty_like(out, dtype=torch.float32)
        return self._total


def _add(message: Sparse, total: Tensor) -> None:
    values = message.values.to(total.device)
    if message.indices is None:
        total.add_(values)
    else:
        kernels.of(total).add_at(total, message.indices.to(total.device), values, known=True)
