"""What a server does in a round: gathers one shard of all workers' gradients, averages it, answers everybody."""

from __future__ import annotations

from testbed.compress.base import Sparse
from testbed.compress.layers import read_message
from testbed.compress.payload import Scratch
from testbed.compress.shards import Shard
from testbed.errors import WireError
from testbed.exchange.kinds import ServerSide
from testbed.node import Buffer, Message, Node
from testbed.record.events import RoundRecord
from testbed.train.agreement import Note, agreed, detached
from testbed.train.job import Job
from testbed.train.reply import Reply
from testbed.train.seen import seen


class Averager:
    """Answers rounds of ``shard`` over ``exchange``. ``bytes_down``: frame bytes of all replies."""

    def __init__(self, node: Node, job: Job, exchange: ServerSide, shard: Shard) -> None:
        self._node, self._job, self._exchange, self._shard = node, job, exchange, shard
        self._reply = Reply(job.algorithm, shard.layout)
        self._aggregate, self._scratch = self._reply.aggregate(), Scratch()
        self.bytes_down = 0

    def round(self, step: int, *, last: bool) -> tuple[Buffer, RoundRecord]:
        """One bulk-synchronous step: the reply's payload, which holds until the next one, and its record."""
        number = self._shard.number
        messages = self._exchange.gather(step, number)
        gathered_s = self._node.now()
        gradients, note = self._apart(messages)
        mean = self._mean(messages, gradients)
        payload = self._reply.encode(mean, self._node.rng)
        aggregate_s = self._node.now() - gathered_s
        reply = payload if note is None else note.attached(payload)
        sent = self._exchange.broadcast(step, number, reply, last=last)
        self.bytes_down += sent.frame_bytes
        return payload, RoundRecord(
            node=self._job.node,
            step=step,
            messages=[seen(self._node, message) for message in messages],
            aggregate_s=aggregate_s,
            send_start_s=sent.start_s,
            send_end_s=sent.end_s,
            bytes_down=sent.frame_bytes,
            union_count=mean.count,
        )

    def _apart(self, messages: list[Message]) -> tuple[list[Buffer], Note | None]:
        """Gradients, and what workers agree upon; None where they do not, or another server sees to it."""
        if not self._job.algorithm.agree or self._shard.number:
            return [message.body for message in messages], None
        parts = [detached(message.body) for message in messages]
        return [payload for payload, _ in parts], agreed([note for _, note in parts])

    def _mean(self, messages: list[Message], gradients: list[Buffer]) -> Sparse:
        """The mean gradient, added up by rank so that it is the same in every run."""
        self._aggregate.reset()
        for message, gradient in zip(messages, gradients, strict=True):
            try:
                read = read_message(gradient, self._shard.layout, self._scratch)
                self._aggregate.add(read)
            except WireError as error:
                name = self._job.peer_name(message.sender)
                raise WireError(f"gradient of {name}, step {message.step}: {error}") from error
        return self._aggregate.mean(len(messages))
