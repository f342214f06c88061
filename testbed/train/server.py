"""The parameter server: averages the workers' gradients, answers all of them, and measures accuracy."""

from __future__ import annotations

from typing import Any

from testbed.compress.base import Sparse
from testbed.compress.layers import read_message
from testbed.compress.payload import Scratch
from testbed.errors import WireError
from testbed.exchange.kinds import Sent
from testbed.node import Message, Node
from testbed.record.events import EpochRecord, EvaluationRecord, RoundRecord
from testbed.train.batches import Batches
from testbed.train.data import open_task
from testbed.train.evaluate import Evaluation
from testbed.train.job import Job
from testbed.train.peers import exchange_kind, peers
from testbed.train.rehearsal import rehearse
from testbed.train.replica import Replica
from testbed.train.reply import Reply
from testbed.train.seen import seen
from testbed.train.stop import Stopping


class Server:
    """The server of one run. ``prepare``, then ``run`` from t0 on.

    It applies every update to a replica of its own, on which it measures test accuracy while the workers
    compute; it decides which step is the last.
    """

    def __init__(self, node: Node, job: Job) -> None:
        self._node, self._job = node, job
        self._applied_s = 0.0

    def prepare(self) -> None:
        """Load data, build the model, pay first-time costs, and wait for every worker's greeting.

        Raises InputError or MachineError when the job cannot be done here, NodeLost for a missing worker.
        """
        job = self._job
        self._exchange = exchange_kind(job).server(self._node, peers(job))
        self._replica = Replica(job)
        self._evaluation = Evaluation(self._node, job, self._replica.device)
        count = len(open_task(job.train).train_set()[1])
        self._batches = Batches(count, job.train.batch, job.workers, job.seed)
        self._stopping = Stopping(job.train.stop, self._batches.steps_per_epoch)
        self._layout = self._replica.flat.layout
        self._reply = Reply(job.algorithm, self._layout)
        self._aggregate, self._scratch = self._reply.aggregate(), Scratch()
        rehearse(job, self._replica)
        self._evaluation.rehearse()
        self._exchange.welcome()

    def run(self) -> dict[str, Any]:
        """Serve rounds until the last step, then evaluate on the whole test set; returns a summary.

        Raises NodeLost naming worker and step, WireError for a message that is not a gradient.
        """
        self._node.sleep_until(0.0)
        step, last, bytes_down = 0, False, 0
        while not last:
            step += 1
            self._take_evaluation(wait=self._job.train.stop.accuracy is not None)
            last = self._stopping.ends(step)
            bytes_down += self._round(step, last)
            self._after(step, last)
        self._exchange.farewell(step)
        self._take_evaluation(wait=True)
        final = self._evaluation.final(step, self._applied_s, self._replica.flat.parameters)
        self._node.record(final.to_json())
        return self._summary(bytes_down, final)

    def _after(self, step: int, last: bool) -> None:
        """What is done while the workers compute the next step."""
        if self._batches.ends_epoch(step):
            self._node.record(self._epoch_record(step).to_json())
        if not last and step % self._job.train.evaluate_every == 0:
            self._evaluation.begin(step, self._applied_s, self._replica.flat.parameters)

    def _take_evaluation(self, *, wait: bool) -> None:
        """Record evaluations that have ended. A run that stops at an accuracy waits for it: which step
        is the last must not depend on how fast this machine evaluates."""
        while evaluated := self._evaluation.result(wait=wait):
            self._stopping.saw(evaluated.accuracy)
            self._node.record(evaluated.to_json())

    def _round(self, step: int, last: bool) -> int:
        """One bulk-synchronous step; returns the reply's frame bytes."""
        messages = self._exchange.gather(step, 0)
        gathered_s = self._node.now()
        mean = self._mean(messages)
        payload = self._reply.encode(mean, self._node.rng)
        aggregate_s = self._node.now() - gathered_s
        sent = self._exchange.broadcast(step, 0, payload, last=last)
        self._replica.decode(payload)
        self._replica.apply(self._batches.epoch(step))
        self._applied_s = self._node.now()
        self._node.record(self._round_record(step, messages, aggregate_s, sent, mean).to_json())
        return sent.frame_bytes

    def _mean(self, messages: list[Message]) -> Sparse:
        """The mean gradient, added up by rank so that it is the same in every run."""
        self._aggregate.reset()
        for message in messages:
            try:
                self._aggregate.add(read_message(message.body, self._layout, self._scratch))
            except WireError as error:
                name = self._job.peer_name(message.sender)
                raise WireError(f"gradient of {name}, step {message.step}: {error}") from error
        return self._aggregate.mean(len(messages))

    def _round_record(
        self, step: int, messages: list[Message], aggregate_s: float, sent: Sent, mean: Sparse
    ) -> RoundRecord:
        return RoundRecord(
            node=self._job.node,
            step=step,
            messages=[seen(self._node, message) for message in messages],
            aggregate_s=aggregate_s,
            send_start_s=sent.start_s,
            send_end_s=sent.end_s,
            bytes_down=sent.frame_bytes,
            union_count=mean.count,
        )

    def _epoch_record(self, step: int) -> EpochRecord:
        epoch = self._batches.epoch(step)
        return EpochRecord(self._job.node, epoch, step, self._replica.fingerprint())

    def _summary(self, bytes_down: int, final: EvaluationRecord) -> dict[str, Any]:
        return {
            "role": "server",
            "node": self._job.node,
            "steps": final.step,
            "end_s": self._applied_s,
            "accuracy": final.accuracy,
            "loss": final.loss,
            "samples": final.samples,
            "parameters": self._replica.fingerprint(),
            "bytes_down": bytes_down,
            "bytes_sent": self._exchange.bytes_sent,
            "bytes_received": self._exchange.bytes_received,
        }
