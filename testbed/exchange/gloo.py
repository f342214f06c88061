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
from typing import TYPE_CHECKING, Literal

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


_MOMENT_S = 1.0
"""From gloo's complaint to the end of a connection of ours, which has a name."""
_LENGTH_BYTES = 8


class BucketOptions(Options):
    """Bytes from which on a bucket is full, and the first one; PyTorch's own defaults."""

    bucket_bytes: PositiveInt = 25 << 20
    first_bucket_bytes: PositiveInt = 1 << 20


class GlooExchange(AllGatherExchange):
    """Common part of the exchanges by Gloo. ``group``: there after ``greet``."""

    group: CollectiveGroup

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        self.many = len(peers.workers)

    def greet(self) -> None:
        """All workers are members of one group when this returns."""
        super().greet()
        timeout_s = self._peers.timeout_s
        self.group = self._node.group(self._peers.workers, timeout_s + PREPARATION_S, timeout_s)

    def close(self) -> None:
        """Nobody needs the group any more when all have said goodbye."""
        super().close()
        self.group.close()

    def now(self) -> float:
        """Seconds since t0."""
        return self._node.now()

    def during(self, step: int, lost: NodeLost) -> NodeLost:
        """The same with step and phase, and with the name of whoever has left, if that is known."""
        asked_s = self._node.now()
        try:
            self._node.endpoint.receive(_MOMENT_S)
        except NodeLost as known:
            if self._node.now() - asked_s < _MOMENT_S:
                lost = NodeLost(known.node, None, f"{known.reason}; {lost.reason}")
        return lost.during(step, "receiving")


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
        start_s = self.now()
        values = torch.frombuffer(bytearray(payload), dtype=torch.float32)
        values = values.div_(self.many).to(getattr(torch, self._kind))
        once = values.nbytes * 2 * (self.many - 1) // self.many
        return GlooTicket(self, step, start_s, lambda: self._add_up(step, values), once)

    def _add_up(self, step: int, values: Tensor) -> Callable[[], tuple[float, Update]]:
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

        start_s = self.now()
        own = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        try:
            lengths = self._lengths(own.numel())
        except NodeLost as lost:
            raise self.during(step, lost) from lost
        once = (self.many - 1) * (_LENGTH_BYTES + max(lengths))
        begin = partial(self._gather, step, bucket, own, lengths)
        return GlooTicket(self, step, start_s, begin, once)

    def _lengths(self, own: int) -> list[int]:
        import torch

        everybodys = torch.empty(self.many, dtype=torch.int64)
        self.group.gather(torch.tensor([own]), everybodys).wait()
        found: list[int] = everybodys.tolist()
        return found

    def _gather(
        self, step: int, bucket: int, own: Tensor, lengths: list[int]
    ) -> Callable[[], tuple[float, Update]]:
        import torch

        longest = max(lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: own.numel()] = own
        everybodys = torch.empty(self.many * longest, dtype=torch.uint8)
        pending = self.group.gather(padded, everybodys)

        def wait() -> tuple[float, Update]:
            ended_s = pending.wait()
            rows = [row.numpy().data for row in everybodys.view(self.many, longest)]
            parts = [
                Message(Kind.GRADIENT, step, bucket, peer, row[:length])
                for peer, row, length in zip(self.workers, rows, lengths, strict=True)
            ]
            return ended_s, Update("gradients", step, parts=parts)

        return wait


class GlooTicket:
    """A submitted bucket (``testbed.exchange.base.Ticket``). ``once``: bytes that go each way."""

    def __init__(
        self,
        exchange: GlooExchange,
        step: int,
        start_s: float,
        begin: Callable[[], Callable[[], tuple[float, Update]]],
        once: int,
    ) -> None:
        self._exchange, self._step, self._start_s, self._once = exchange, step, start_s, once
        try:
            self._wait = begin()
        except NodeLost as lost:
            raise exchange.during(step, lost) from lost
        self._sent_s = exchange.now()
        self._travel: TransferTiming | None = None

    def wait(self) -> Update:
        """The mean, or everybody's payloads. Gloo tells of no times in between: all of it is
        waiting."""
        try:
            ended_s, update = self._wait()
        except NodeLost as lost:
            raise self._exchange.during(self._step, lost) from lost
        last_s = max(ended_s, self._sent_s)
        self._travel = TransferTiming(
            self._start_s, self._sent_s, last_s, last_s, last_s, self._once, self._once
        )
        return update

    @property
    def travel(self) -> TransferTiming:
        """How it went. Raises RuntimeError before ``wait``."""
        if self._travel is None:
            raise RuntimeError("travel is known after wait()")
        return self._travel


ALL_REDUCE = ExchangeSpec(AllReduce, carries="vector")
ALL_REDUCE_BF16 = ExchangeSpec(partial(AllReduce, kind="bfloat16"), carries="vector")
ALL_GATHER = ExchangeSpec(AllGather)
DDP = ExchangeSpec(AllReduce, carries="vector", overlaps=True, options=BucketOptions)
