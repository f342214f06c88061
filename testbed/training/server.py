"""The parameter servers, synchronous and asynchronous: gather gradients, average or apply them,
answer, and measure accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from torch import Tensor

from testbed.compress.base import Sparse
from testbed.compress.layout import Shard
from testbed.exchange.base import BucketsServer, LeavingServer, ServerSide
from testbed.exchange.parameter_server_async import AsyncPsServer
from testbed.node import Buffer, Message, Node, Queue
from testbed.records.events import EpochRecord, GradientRecord, RoundRecord, ServedRecord
from testbed.training.averaging import PayloadAverager, UpdateEncoder
from testbed.training.bucket_pipeline import PriorityExecutor
from testbed.training.compute import warm_up
from testbed.training.data import Batches, open_task
from testbed.training.gradient_codec import bucket_rng, send_priority
from testbed.training.job import Job, seen
from testbed.training.membership import FailureLog, non_participants, peers, server_class
from testbed.training.replica import Replica
from testbed.training.worker import RunEvaluator, Stopping

_FIRST = -(1 << 16)
"""More urgent than any bucket, whose numbers have 16 bits: the reply that says which step is the
last."""

Answers = dict[int, Buffer]
"""Payloads of replies by shard number, which hold until the next round."""


class ServerRound:
    """Answers rounds of ``shards`` over ``exchange``. ``bytes_down``: frame bytes of all
    replies."""

    def __init__(self, node: Node, job: Job, exchange: ServerSide, shards: Sequence[Shard]) -> None:
        self._node, self._job, self._exchange = node, job, exchange
        self._means = {shard.number: PayloadAverager(job, shard) for shard in shards}
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
            others=non_participants(self._job, step),
        )

    def end(self) -> None:
        """There is no round any more, whatever the reason."""


class BucketedServerRound(ServerRound):
    """Answers every bucket as soon as all workers' parts of it are there, beside gathering the
    others."""

    def __init__(self, node: Node, job: Job, exchange: ServerSide, shards: Sequence[Shard]) -> None:
        super().__init__(node, job, exchange, shards)
        self._done: Queue[ServedRecord | BaseException] = node.queue()
        self._lane = PriorityExecutor(node, self._done.put)
        # in which order they are answered is the network's doing
        self._rngs = {shard.number: bucket_rng(job, shard) for shard in shards}

    def round(self, step: int, *, last: bool) -> tuple[Answers, RoundRecord]:
        """See ``ServerRound``; a record of every bucket is written as well."""
        left, answers = dict.fromkeys(self._means), Answers()
        side = cast(BucketsServer, self._exchange)
        while left:
            number, messages = side.gather_any(step, left)
            answers[number] = self._answer(step, number, messages, last=last and not answers)
            del left[number]
        served = [self._served() for _ in answers]
        return answers, _together(served)

    def end(self) -> None:
        """See ``ServerRound``; what is being sent is left to itself."""
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

        self._lane.put(send, _FIRST if last else send_priority(self._job, number))
        return payload

    def _served(self) -> ServedRecord:
        """Return the record of the next bucket whose reply has been handed over. Raises what
        sending it raised."""
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


class ShardServer:
    """One of several servers: averages its shards, and keeps no parameters. ``prepare``, then
    ``run`` from t0 on.

    Its rank says which: they go round. It decides which step is the last, as the others do, by
    numbers alone: a run with several servers has no accuracy to stop at, and the first worker
    measures it.
    """

    def __init__(self, node: Node, job: Job) -> None:
        self._node, self._job = node, job
        self._step, self._end_s = 0, 0.0

    def prepare(self) -> None:
        """Load data, build the model, pay first-time costs, and wait for every worker's greeting.

        Raises InputError or MachineError when the job cannot be done here, NodeLost for a missing
        worker.
        """
        job = self._job
        self._exchange = server_class(job)(self._node, peers(job))
        self._losses = FailureLog(self._node, job, self._exchange)
        replica = Replica(job)
        count = len(open_task(job.train).train_set()[1])
        self._batches = Batches(count, job.train.batch, job.workers, job.seed)
        self._stopping = Stopping(job.train.stop, self._batches.steps_per_epoch)
        averager = BucketedServerRound if job.algorithm.bucket_bytes else ServerRound
        own = [shard for shard in replica.shards if shard.number % job.servers == job.rank]
        self._averager = averager(self._node, job, self._exchange, own)
        warm_up(job, replica)
        self._equip(replica)
        self._exchange.welcome()

    def run(self) -> dict[str, Any]:
        """Serve rounds until the last step; returns a summary.

        Raises NodeLost naming worker and step, WireError for a message that is not a gradient.
        """
        self._node.sleep_until(0.0)
        try:
            while not self._round():
                pass
        finally:
            self._averager.end()
        self._exchange.farewell(self._step)
        self._losses.note(self._step)
        return {
            "role": "server",
            "node": self._job.node,
            "steps": self._step,
            "end_s": self._end_s,
            **self._outcome(),
            "bytes_down": self._averager.bytes_down,
            "bytes_sent": self._exchange.bytes_sent,
            "bytes_received": self._exchange.bytes_received,
        }

    def _round(self) -> bool:
        """One step; whether it was the last."""
        step = self._step = self._step + 1
        last = self._ends(step)
        answers, record = self._averager.round(step, last=last)
        self._apply(step, answers)
        self._end_s = self._node.now()
        self._node.record(record.to_json())
        if self._job.absences:
            cast(LeavingServer, self._exchange).welcome_back(step, last=last)
        self._losses.note(step)
        self._after(step, last=last)
        return last

    def _equip(self, replica: Replica) -> None:
        """Keep of the replica what is needed during the run."""

    def _ends(self, step: int) -> bool:
        return self._stopping.ends(step)

    def _apply(self, step: int, answers: Answers) -> None:
        """The reply of ``step`` has been sent."""

    def _after(self, step: int, *, last: bool) -> None:
        """Do the work that is done while the workers compute the next step."""

    def _outcome(self) -> dict[str, Any]:
        return {"parameters": None}


class Server(ShardServer):
    """The only server of a run.

    It applies every update to a replica of its own, on which it measures test accuracy while the
    workers compute.
    """

    def _equip(self, replica: Replica) -> None:
        self._replica = replica
        if self._job.absences:
            cast(LeavingServer, self._exchange).state = replica.state
        self._watch = RunEvaluator(self._node, self._job, replica)
        self._watch.rehearse()

    def _ends(self, step: int) -> bool:
        """A run that stops at an accuracy waits for evaluations: which step is the last must not
        depend on how fast this machine evaluates."""
        for accuracy in self._watch.accuracies(wait=self._job.train.stop.accuracy is not None):
            self._stopping.saw(accuracy)
        return super()._ends(step)

    def _apply(self, step: int, answers: Answers) -> None:
        for shard in self._replica.shards:
            self._replica.decode(shard, answers[shard.number])
        self._replica.apply(self._batches.epoch(step))

    def _after(self, step: int, *, last: bool) -> None:
        if self._batches.ends_epoch(step):
            epoch, made = self._batches.epoch(step), self._replica.fingerprint()
            self._node.record(EpochRecord(self._job.node, epoch, step, made).to_json())
        self._watch.applied(step, self._end_s, last=last)

    def _outcome(self) -> dict[str, Any]:
        final = self._watch.end(self._step, self._end_s)
        return {
            "accuracy": final.accuracy,
            "loss": final.loss,
            "samples": final.samples,
            "parameters": self._replica.fingerprint(),
        }


class AsyncServer:
    """x ← x − η·g of one worker after the other. Its version counts the gradients applied; as many
    as there are workers are a step of the run. ``prepare``, then ``run`` from t0 on."""

    def __init__(self, node: Node, job: Job) -> None:
        self._node, self._job = node, job
        self._version, self._end_s = 0, 0.0

    def prepare(self) -> None:
        """Load data, build the model, pay first-time costs, and wait for every worker's greeting.

        Raises InputError or MachineError when the job cannot be done here, NodeLost for a missing
        worker.
        """
        job = self._job
        self._hub = AsyncPsServer(self._node, peers(job))
        self._losses = FailureLog(self._node, job, self._hub)
        self._replica = Replica(job)
        count = len(open_task(job.train).train_set()[1])
        self._batches = Batches(count, job.train.batch, job.workers, job.seed)
        self._stopping = Stopping(job.train.stop, self._batches.steps_per_epoch)
        shard = self._replica.shards[0]
        self._reply = UpdateEncoder(job.algorithm, shard.layout)
        # on the way from message to replica nothing may be lost: the row's coding is for parameters
        exact = replace(job.algorithm, down="fp32", down_options={})
        self._gradient = PayloadAverager(replace(job, algorithm=exact), shard)
        warm_up(job, self._replica)
        self._watch = RunEvaluator(self._node, job, self._replica)
        self._watch.rehearse()
        self._hub.welcome()

    def run(self) -> dict[str, Any]:
        """Apply gradients until the last; returns a summary.

        Raises NodeLost when no worker is left, WireError for a message that is not a gradient.
        """
        self._node.sleep_until(0.0)
        last = False
        while not last:
            (message,) = self._hub.gather(self._version + 1, 0)
            last = self._apply(message)
            self._hub.broadcast(self._version, 0, self._parameters(), last=last)
            self._losses.note(self._step)
            self._after(last=last)
        self._hub.farewell(self._version)
        self._losses.note(self._step)
        return self._summary()

    @property
    def _step(self) -> int:
        """Step of the run: that of the gradient applied last, counted from 1."""
        return (self._version + self._job.workers - 1) // self._job.workers

    def _apply(self, message: Message) -> bool:
        """Apply ``message``'s gradient; return whether it was the last."""
        payload, _, _ = self._gradient.of([message], self._node.rng)
        self._replica.decode(self._replica.shards[0], payload)
        before, self._version = self._version, self._version + 1
        self._replica.apply(self._batches.epoch(self._step))
        self._end_s = self._node.now()
        record = GradientRecord(
            node=self._job.node,
            step=self._step,
            version=self._version,
            own_step=self._hub.made(message.sender),
            computed_on=message.step,
            staleness=before - message.step,
            applied_s=self._end_s,
            **seen(self._node, message),  # type: ignore[arg-type]  # sender and bytes are whole numbers
        )
        self._node.record(record.to_json())
        return self._ends()

    def _ends(self) -> bool:
        for accuracy in self._watch.accuracies(wait=False):
            self._stopping.saw(accuracy)
        whole = self._version % self._job.workers == 0
        return self._stopping.ends(self._step if whole else 0)

    def _parameters(self) -> memoryview:
        """As the row writes what goes down."""
        flat: Tensor = self._replica.parameters.detach().cpu()
        return self._reply.encode(Sparse(flat.numel(), None, flat), self._node.rng)

    def _after(self, *, last: bool) -> None:
        """Do the work at the end of a step of the run, while workers compute."""
        if self._version % self._job.workers:
            return
        step = self._step
        if self._batches.ends_epoch(step):
            epoch, made = self._batches.epoch(step), self._replica.fingerprint()
            self._node.record(EpochRecord(self._job.node, epoch, step, made).to_json())
        self._watch.applied(step, self._end_s, last=last)

    def _summary(self) -> dict[str, Any]:
        final = self._watch.end(self._version // self._job.workers, self._end_s)
        return {
            "role": "server",
            "node": self._job.node,
            "steps": self._version // self._job.workers,
            "end_s": self._end_s,
            "accuracy": final.accuracy,
            "loss": final.loss,
            "samples": final.samples,
            "parameters": self._replica.fingerprint(),
            "bytes_down": self._hub.bytes_down,
            "bytes_sent": self._hub.bytes_sent,
            "bytes_received": self._hub.bytes_received,
        }
