"""All-reduce and all-gather by PyTorch's gloo: baselines, on real networks only.

Gradients go over gloo's own connections. Those of ``testbed.exchange.all_gather`` are there too:
they carry greetings and goodbyes, and when one of them ends it is known who was lost, which gloo
does not say.

Bytes are those that the operations must move, without headers: gloo rings, so that an all-reduce of
D bytes takes 2(n - 1)/n·D, and an all-gather of m bytes each (n - 1)·m, out of every node and into
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import PositiveInt

from testbed.errors import NodeLost
from testbed.exchange.all_gather import AllGatherExchange
from testbed.exchange.base import (
    PREPARATION_S,
    ExchangeSpec,
    Membership,
    Ticket,
    TransferTiming,
    Update,
)
from testbed.node import Buffer, CollectiveGroup, Kind, Message, Node
from testbed.registry import Options

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Wait = Callable[[], tuple[float, Update]]
"""Blocks until an operation has ended; returns when, and what it has brought."""
_MOMENT_S = 1.0
"""From gloo's complaint to the end of a connection of ours, which has a name."""
_LENGTH_BYTES = 8


class BucketOptions(Options):
    """Bytes from which on a bucket is full, and the first one; PyTorch's own defaults."""

    bucket_bytes: PositiveInt = 25 << 20
    first_bucket_bytes: PositiveInt = 1 << 20


class GlooExchange(AllGatherExchange):
    """Common part of the exchanges by Gloo. ``group``: there after ``connect``."""

    group: CollectiveGroup

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        self._workers = len(peers.workers)

    def connect(self) -> None:
        """All workers are members of one group when this returns."""
        super().connect()
        timeout_s = self._peers.timeout_s
        self.group = self._node.group(self._peers.workers, timeout_s + PREPARATION_S, timeout_s)

    def close(self) -> None:
        """Nobody needs the group any more when all have said goodbye."""
        super().close()
        self.group.close()

    def _ticket(
        self, step: int, start_s: float, begin: Callable[[], Wait], bytes_each_way: int
    ) -> Ticket:
        """Begin an operation. Gloo tells of no times in between: all of it is waiting."""
        wait = self._named(step, begin)
        sent_s = self._node.now()

        def finish() -> tuple[Update, TransferTiming]:
            ended_s, update = self._named(step, wait)
            last_s = max(ended_s, sent_s)
            return update, TransferTiming(
                start_s, sent_s, last_s, last_s, last_s, bytes_each_way, bytes_each_way
            )

        return Ticket(finish)

    def _named(self, step: int, action: Callable[[], T]) -> T:
        """Return what ``action`` returns. Raises NodeLost with step and phase, and with the name of
        whoever has left, if that is known."""
        try:
            return action()
        except NodeLost as lost:
            raise self._with_name(lost).during(step, "receiving") from lost

    def _with_name(self, lost: NodeLost) -> NodeLost:
        begun_s = self._node.now()
        try:
            self._node.endpoint.receive(_MOMENT_S)
        except NodeLost as known:
            if self._node.now() - begun_s < _MOMENT_S:
                return NodeLost(known.node, None, f"{known.reason}; {lost.reason}")
        return lost


class AllReduce(GlooExchange):
    """One all-reduce of the whole gradient. ``kind``: of the values that travel, and in which they
    are added up."""

    def __init__(
        self, node: Node, peers: Membership, *, kind: Literal["float32", "bfloat16"] = "float32"
    ) -> None:
        super().__init__(node, peers)
        self._kind = kind

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Begin with float32 ``payload``; returns when gloo has it."""
        import torch

        del bucket
        start_s = self._node.now()
        values = torch.frombuffer(bytearray(payload), dtype=torch.float32)
        values = values.div_(self._workers).to(getattr(torch, self._kind))
        bytes_each_way = values.nbytes * 2 * (self._workers - 1) // self._workers
        return self._ticket(step, start_s, partial(self._add_up, step, values), bytes_each_way)

    def _add_up(self, step: int, values: Tensor) -> Wait:
        pending = self.group.add_up(values)

        def wait() -> tuple[float, Update]:
            ended_s = pending.wait()
            mean = values.float().numpy().data.cast("B")
            return ended_s, Update("gradient", step, mean)

        return wait


class AllGather(GlooExchange):
    """Everybody's payload to everybody. Lengths go first; payloads follow, all as long as the
    longest."""

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Begin with a bucket's payload; returns when gloo has it."""
        import torch

        start_s = self._node.now()
        own = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        lengths = self._named(step, lambda: self._lengths(own.numel()))
        bytes_each_way = (self._workers - 1) * (_LENGTH_BYTES + max(lengths))
        begin = partial(self._gather, step, bucket, own, lengths)
        return self._ticket(step, start_s, begin, bytes_each_way)

    def _lengths(self, own: int) -> list[int]:
        import torch

        everybodys = torch.empty(self._workers, dtype=torch.int64)
        self.group.gather(torch.tensor([own]), everybodys).wait()
        lengths: list[int] = everybodys.tolist()
        return lengths

    def _gather(self, step: int, bucket: int, own: Tensor, lengths: list[int]) -> Wait:
        import torch

        longest = max(lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: own.numel()] = own
        everybodys = torch.empty(self._workers * longest, dtype=torch.uint8)
        pending = self.group.gather(padded, everybodys)

        def wait() -> tuple[float, Update]:
            ended_s = pending.wait()
            rows = [row.numpy().data for row in everybodys.view(self._workers, longest)]
            parts = [
                Message(Kind.GRADIENT, step, bucket, peer, row[:length])
                for peer, row, length in zip(self._peers.workers, rows, lengths, strict=True)
            ]
            return ended_s, Update("gradients", step, parts=parts)

        return wait


ALL_REDUCE = ExchangeSpec(AllReduce, unit="vector")
ALL_REDUCE_BF16 = ExchangeSpec(partial(AllReduce, kind="bfloat16"), unit="vector")
ALL_GATHER = ExchangeSpec(AllGather)
DDP = ExchangeSpec(AllReduce, unit="vector", overlaps=True, options=BucketOptions)
