"""The parameter servers, synchronous and asynchronous: gather gradients, average or apply them,
answer, and measure accuracy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

from torch import Tensor

from testbed.compress.base import Sparse
from testbed.compress.layout import Shard
from testbed.exchange.base import ServerSide
from testbed.exchange.parameter_server import ElasticPsServer, PsServerExchange
from testbed.exchange.parameter_server_async import AsyncPsServer
from testbed.node import Buffer, Message, Node, Queue
from testbed.records.events import GradientRecord, RoundRecord, ServedRecord
from testbed.training.averaging import PayloadAverager, UpdateEncoder
from testbed.training.bucket_pipeline import PriorityExecutor
from testbed.training.compute import warm_up
from testbed.training.data import Batches, open_task
from testbed.training.gradient_codec import bucket_rng, send_priority
from testbed.training.job import Job, message_fields
from testbed.training.membership import non_participants
from testbed.training.replica import Replica
from testbed.training.server_role import FailureLog, ServerRole
from testbed.training.worker import RunEvaluator, Stopping, record_epoch

_FIRST = -(1 << 16)
"""More urgent than any bucket, whose numbers have 16 bits: the reply that names the last step."""

Answers = dict[int, Buffer]
"""Payloads of replies by shard number, which hold until the next round."""


class ServerRound:
    """Answers rounds of ``shards``. ``bytes_down``: frame bytes of all replies."""

    def __init__(self, node: Node, job: Job, exchange: ServerSide, shards: Sequence[Shard]) -> None:
        self._node, self._job, self._exchange = node, job, exchange
        self._averagers = {shard.number: PayloadAverager(job, shard) for shard in shards}
        self.bytes_down = 0

    def round(self, step: int, *, last: bool) -> tuple[Answers, RoundRecord]:
        """One bulk-synchronous step, and its record."""
        (number,) = self._averagers
        messages = self._exchange.gather(step, number)
        payload, send = self._answer(step, number, messages, self._node.rng, last=last)
        return {number: payload}, _merged([send()], non_participants(self._job, step))

    def end(self) -> None:
        """There is no round any more, whatever the reason."""

    def _answer(
        self, step: int, number: int, messages: Sequence[Message], rng: Random, *, last: bool
    ) -> tuple[Buffer, Callable[[], ServedRecord]]:
        """Average ``messages``; return the mean's payload, and what sends the reply."""
        node, complete_s = self._node, self._node.now()
        payload, count, stats = self._averagers[number].average(messages, rng)
        if self._job.algorithm.down_density < 1:
            node.compressed(1, self._averagers[number].size)
        aggregate_s = node.now() - complete_s
        received = [message_fields(node, message) for message in messages]
        reply = payload if stats is None else stats.append_to(payload)

        def send() -> ServedRecord:
            sent = self._exchange.broadcast(step, number, reply, last=last)
            self.bytes_down += sent.frame_bytes
            return ServedRecord(
                node=self._job.node,
                step=step,
                bucket=number,
                messages=received,
                complete_s=complete_s,
                aggregate_s=aggregate_s,
                send_start_s=sent.start_s,
                send_end_s=sent.end_s,
                bytes_down=sent.frame_bytes,
                union_count=count,
            )

        return payload, send


class BucketedServerRound(ServerRound):
    """Answers every bucket as soon as all workers' parts have come, and gathers the others."""

    def __init__(self, node: Node, job: Job, exchange: ServerSide, shards: Sequence[Shard]) -> None:
        super().__init__(node, job, exchange, shards)
        self._sent: Queue[ServedRecord | BaseException] = node.queue()
        self._sending = PriorityExecutor(node, self._sent.put)
        # in which order they are answered is the network's doing
        self._rngs = {shard.number: bucket_rng(job, shard) for shard in shards}

    def round(self, step: int, *, last: bool) -> tuple[Answers, RoundRecord]:
        """See ``ServerRound``; a record of every bucket is written as well."""
        left, answers = dict.fromkeys(self._averagers), Answers()
        side = cast(PsServerExchange, self._exchange)
        while left:
            number, messages = side.gather_any(step, left)
            first, rng = last and not answers, self._rngs[number]
            answers[number], send = self._answer(step, number, messages, rng, last=first)
            priority = _FIRST if first else send_priority(self._job, number)
            self._sending.put(lambda send=send: self._sent.put(send()), priority)  # type: ignore[misc]
            del left[number]
        return answers, _merged([self._next_sent() for _ in answers])

    def end(self) -> None:
        """See ``ServerRound``; what is being sent is left to itself."""
        self._sending.end()

    def _next_sent(self) -> ServedRecord:
        """Return the record of the next bucket whose reply was sent. Raises what sending raised."""
        record = self._sent.get()
        if isinstance(record, BaseException):
            raise record
        self._node.record(record.to_json())
        return record


def _merged(buckets: Sequence[ServedRecord], others: Sequence[int] = ()) -> RoundRecord:
    """All buckets of a step as one round. ``others``: workers that took no part."""
    messages: dict[float, dict[str, Any]] = {}
    for bucket in buckets:
        for message in bucket.messages:
            whole = messages.setdefault(message["sender"], {**message, "bytes": 0})
            whole["bytes"] += message["bytes"]
            for name in ("sent_s", "first_s"):
                whole[name] = min(whole[name], message[name])
            for name in ("arrived_s", "last_s"):
                whole[name] = max(whole[name], message[name])
    return RoundRecord(
        node=buckets[0].node,
        step=buckets[0].step,
        messages=[messages[sender] for sender in sorted(messages)],
        aggregate_s=sum(bucket.aggregate_s for bucket in buckets),
        send_start_s=min(bucket.send_start_s for bucket in buckets),
        send_end_s=max(bucket.send_end_s for bucket in buckets),
        bytes_down=sum(bucket.bytes_down for bucket in buckets),
        union_count=sum(bucket.union_count for bucket in buckets),
        others=list(others),
    )


class TrainingServer(ServerRole):
    """A server that has the model.

    Alone it applies every update to a replica of its own, on which it measures test accuracy while
    the workers compute. One of several keeps no parameters, and decides by numbers alone which step
    is the last, as the others do; the first worker measures the accuracy.
    """

    def _load(self) -> None:
        node, job = self._node, self._job
        self._failures = FailureLog(node, job, self._exchange)
        replica = Replica(job)
        count = len(open_task(job.train).train_set()[1])
        self._batches = Batches(count, job.train.batch, job.workers, job.seed)
        self._stopping = Stopping(job.train.stop, self._batches.steps_per_epoch)
        self._make_averagers(replica)
        warm_up(job, replica)
        self._evaluator = RunEvaluator(node, job, replica) if job.servers == 1 else None
        if self._evaluator is not None:
            self._evaluator.warm_up()

    @abstractmethod
    def _make_averagers(self, replica: Replica) -> None: ...

    def _ends(self, step: int, *, wait: bool) -> bool:
        """Return whether ``step`` is the last. ``wait``: let an evaluation under way end first."""
        if self._evaluator is not None:
            for accuracy in self._evaluator.accuracies(wait=wait):
                self._stopping.add_accuracy(accuracy)
        return self._stopping.ends(step)

    def _after_step(self, *, last: bool) -> None:
        """Do the work that is done while the workers compute the next step."""
        if self._evaluator is not None:
            record_epoch(self._node, self._batches, self._evaluator.replica, self._step)
            self._evaluator.applied(self._step, self._end_s, last=last)

    def _end(self) -> None:
        super()._end()
        self._failures.record(self._step)

    def _outcome(self) -> dict[str, Any]:
        if self._evaluator is None:
            return {"parameters": None}
        final = self._evaluator.end(self._step, self._end_s)
        return {
            "accuracy": final.accuracy,
            "loss": final.loss,
            "samples": final.samples,
            "parameters": self._evaluator.replica.fingerprint(),
        }


class Server(TrainingServer):
    """The only server of a run, or one of several, which averages its shards."""

    def _make_averagers(self, replica: Replica) -> None:
        job, rounds = self._job, ServerRound
        if job.algorithm.bucket_bytes:
            rounds = BucketedServerRound
        own = [shard for shard in replica.shards if shard.number % job.servers == job.rank]
        self._rounds = rounds(self._node, job, self._exchange, own)
        if job.absences:
            cast(ElasticPsServer, self._exchange).state = replica.state

    def _serve(self) -> bool:
        step = self._step = self._step + 1
        # which step is the last must not depend on how fast this machine evaluates
        last = self._ends(step, wait=self._job.train.stop.accuracy is not None)
        answers, record = self._rounds.round(step, last=last)
        if self._evaluator is not None:
            replica = self._evaluator.replica
            for shard in replica.shards:
                replica.decode(shard, answers[shard.number])
            replica.apply(self._batches.epoch(step))
        self._end_s, self._bytes_down = self._node.now(), self._rounds.bytes_down
        self._node.record(record.to_json())
        if self._job.absences:
            cast(ElasticPsServer, self._exchange).send_state_to_rejoined(step, last=last)
        self._failures.record(step)
        self._after_step(last=last)
        return last

    def _stop(self) -> None:
        self._rounds.end()


class AsyncServer(TrainingServer):
    """x ← x − η·g of one worker after the other. Its version counts the gradients applied; as many
    as there are workers are a step of the run."""

    _exchange: AsyncPsServer

    def _make_averagers(self, replica: Replica) -> None:
        job, self._replica, self._version = self._job, replica, 0
        shard = replica.shards[0]
        self._encoder = UpdateEncoder(job.algorithm, shard.layout)
        # between message and replica nothing may be lost: the row's coding is for parameters
        exact = replace(job.algorithm, down="fp32", down_options={})
        self._gradient = PayloadAverager(replace(job, algorithm=exact), shard)

    def _serve(self) -> bool:
        """Apply one gradient, and answer whoever may go on."""
        (message,) = self._exchange.gather(self._version + 1, 0)
        last = self._apply(message)
        parameters: Tensor = self._replica.parameters.detach().cpu()
        values = Sparse(parameters.numel(), None, parameters)
        reply = self._encoder.encode(values, self._node.rng)
        self._exchange.broadcast(self._version, 0, reply, last=last)
        self._bytes_down = self._exchange.bytes_down
        self._failures.record(self._step)
        if self._whole_step:
            self._after_step(last=last)
        return last

    @property
    def _whole_step(self) -> bool:
        """True when all gradients of the step have been applied."""
        return self._version % self._job.workers == 0

    def _apply(self, message: Message) -> bool:
        """Apply ``message``'s gradient; return whether it was the last."""
        node, replica = self._node, self._replica
        payload, _, _ = self._gradient.average([message], node.rng)
        replica.decode(replica.shards[0], payload)
        self._step = self._version // self._job.workers + 1
        self._version += 1
        replica.apply(self._batches.epoch(self._step))
        self._end_s = node.now()
        record = GradientRecord(
            node=self._job.node,
            step=self._step,
            version=self._version,
            own_step=self._exchange.gradients[message.sender],
            computed_on=message.step,
            staleness=self._version - 1 - message.step,
            applied_s=self._end_s,
            **message_fields(node, message),  # type: ignore[arg-type]  # sender and bytes are whole numbers
        )
        node.record(record.to_json())
        return self._ends(self._step if self._whole_step else 0, wait=False)

    def _end(self) -> None:
        self._exchange.await_goodbyes(self._version)
        self._bytes_down = self._exchange.bytes_down
        self._failures.record(self._step)
        self._step = self._version // self._job.workers  # a part of a step is none

    def _outcome(self) -> dict[str, Any]:
        outcome = super()._outcome()
        # within a step the parameters are no longer those at the end of the one before
        return outcome if self._whole_step else {**outcome, "parameters": None}
