"""What a server does in a round: gathers one shard of all workers' gradients, averages it, answers everybody."""

from __future__ import annotations

from testbed.compress.shards import Shard
from testbed.exchange.kinds import ServerSide
from testbed.node import Buffer, Node
from testbed.record.events import RoundRecord
from testbed.train.job import Job
from testbed.train.mean import Mean
from testbed.train.seen import seen


class Averager:
    """Answers rounds of ``shard`` over ``exchange``. ``bytes_down``: frame bytes of all replies."""

    def __init__(self, node: Node, job: Job, exchange: ServerSide, shard: Shard) -> None:
        self._node, self._job, self._exchange = node, job, exchange
        self._number, self._mean = shard.number, Mean(job, shard)
        self.bytes_down = 0

    def round(self, step: int, *, last: bool) -> tuple[Buffer, RoundRecord]:
        """One bulk-synchronous step: the reply's payload, which holds until the next one, and its record."""
        number = self._number
        messages = self._exchange.gather(step, number)
        gathered_s = self._node.now()
        payload, count, note = self._mean.of(messages, self._node.rng)
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
            union_count=count,
        )
