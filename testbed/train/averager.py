"""What a server does in a round: gathers its shards of all workers' gradients, averages them, answers everybody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from testbed.compress.shards import Shard
from testbed.exchange.kinds import BucketsServer, ServerSide
from testbed.node import Buffer, Message, Node, Queue
from testbed.record.bucket_events import ServedRecord
from testbed.record.events import RoundRecord
from testbed.train.bucket_order import bucket_rng, urgency
from testbed.train.job import Job
from testbed.train.lane import Lane
from testbed.train.mean import Mean
from testbed.train.participation import resting
from testbed.train.seen import seen

_FIRST = -(1 << 16)
"""More urgent than any bucket, whose numbers have 16 bits: the reply that says which step is the last."""

Answers = dict[int, Buffer]
"""Payloads of replies by shard number, which hold until the next round."""


class Averager:
    """Answers rounds of ``shards`` over ``exchange``. ``bytes_down``: frame bytes of all replies."""

    def __init__(self, node: Node, job: Job, exchange: ServerSide, shards: Sequence[Shard]) -> None:
        self._node, self._job, self._exchange = node, job, exchange
        self._means = {shard.number: Mean(job, shard) for shard in shards}
        self.bytes_down = 0

    def round(self, step: int, *, last: bool) -> tuple[Answers, RoundRecord]:
        """One bulk-synchronous step, and its record."""
        ((number, mean),) = self._means.items()
        messages = self._exchange.gather(step, number)
        gathered_s = self._node.now()
        payload, count, note = mean.of(messages, self._node.rng)
        aggregate_s = self._node.now() - gathered_s
        reply = payload if note is None else note.attached(payload)
        sent = self._exchange.broadcast(step, number, reply, last=last)
        self.bytes_down += sent.frame_bytes
        return {number: payload}, RoundRecord(
            node=self._job.node,
            step=step,
            messages=[seen(self._node, message) for message in messages],
            aggregate_s=aggregate_s,
            send_start_s=sent.start_s,
            send_end_s=sent.end_s,
            bytes_down=sent.frame_bytes,
            union_count=count,
            others=resting(self._job, step),
        )

    def end(self) -> None:
        """There is no round any more, whatever the reason."""


class BucketsAverager(Averager):
    """Answers every bucket as soon as all workers' parts of it are there, beside gathering the others."""

    def __init__(self, node: Node, job: Job, exchange: ServerSide, shards: Sequence[Shard]) -> None:
        super().__init__(node, job, exchange, shards)
        self._done: Queue[ServedRecord | BaseException] = node.queue()
        self._lane = Lane(node, self._done.put)
        # in which order they are answered is the network's doing
        self._rngs = {shard.number: bucket_rng(job, shard) for shard in shards}

    def round(self, step: int, *, last: bool) -> tuple[Answers, RoundRecord]:
        """See ``Averager``; a record of every bucket is written as well."""
        left, answers = dict.fromkeys(self._means), Answers()
        side = cast(BucketsServer, self._exchange)
        while left:
            number, messages = side.gather_any(step, left)
            answers[number] = self._answer(step, number, messages, last=last and not answers)
            del left[number]
        served = [self._served() for _ in answers]
        return answers, _together(served)

    def end(self) -> None:
        """See ``Averager``; what is being sent is left to itself."""
        self._lane.end()

    def _answer(self, step: int, number: int, messages: Sequence[Message], *, last: bool) -> Buffer:
        """The reply's payload; it is sent beside what comes next."""
        node, complete_s = self._node, self._node.now()
        payload, count, note = self._means[number].of(messages, self._rngs[number])
        averaged_s = node.now()
        reply = payload if note is None else note.attached(payload)
        about = [seen(node, message) for message in messages]

        def send() -> None:
            sent = self._exchange.broadcast(step, number, reply, last=last)
            self._done.put(
                ServedRecord(
                    node=self._job.node,
                    step=step,
                    bucket=number,
                    messages=about,
                    complete_s=complete_s,
                    aggregate_s=averaged_s - complete_s,
                    send_start_s=sent.start_s,
                    send_end_s=sent.end_s,
                    bytes_down=sent.frame_bytes,
                    union_count=count,
                )
            )

        self._lane.put(send, _FIRST if last else urgency(self._job, number))
        return payload

    def _served(self) -> ServedRecord:
        """Of the next bucket whose reply has been handed over. Raises what sending it raised."""
        done = self._done.get()
        if isinstance(done, BaseException):
            raise done
        self._node.record(done.to_json())
        self.bytes_down += done.bytes_down
        return done


def _together(served: Sequence[ServedRecord]) -> RoundRecord:
    """All buckets of a step as one round."""
    messages: dict[float, dict[str, Any]] = {}
    for one in served:
        for message in one.messages:
            if (whole := messages.get(message["sender"])) is None:
                messages[message["sender"]] = dict(message)
            else:
                _join(whole, message)
    return RoundRecord(
        node=served[0].node,
        step=served[0].step,
        messages=[messages[sender] for sender in sorted(messages)],
        aggregate_s=sum(one.aggregate_s for one in served),
        send_start_s=min(one.send_start_s for one in served),
        send_end_s=max(one.send_end_s for one in served),
        bytes_down=sum(one.bytes_down for one in served),
        union_count=sum(one.union_count for one in served),
    )


def _join(whole: dict[str, Any], message: dict[str, float]) -> None:
    whole["bytes"] += message["bytes"]
    for first in ("sent_s", "first_s"):
        whole[first] = min(whole[first], message[first])
    for last in ("arrived_s", "last_s"):
        whole[last] = max(whole[last], message[last])
