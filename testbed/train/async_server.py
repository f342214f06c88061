"""The asynchronous parameter server: applies each gradient when it comes, and answers its sender with parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from testbed.compress.base import Sparse
from testbed.exchange.ps_async import AsyncHub
from testbed.node import Message, Node
from testbed.record.apart_events import GradientRecord
from testbed.record.events import EpochRecord
from testbed.train.batches import Batches
from testbed.train.data import open_task
from testbed.train.job import Job
from testbed.train.losses import Losses
from testbed.train.mean import Mean
from testbed.train.peers import peers
from testbed.train.rehearsal import rehearse
from testbed.train.replica import Replica
from testbed.train.reply import Reply
from testbed.train.seen import seen
from testbed.train.stop import Stopping
from testbed.train.watch import Watch


class AsyncServer:
    """x ← x − η·g of one worker after the other. Its version counts the gradients applied; as many as there are
    workers are a step of the run. ``prepare``, then ``run`` from t0 on."""

    def __init__(self, node: Node, job: Job) -> None:
        self._node, self._job = node, job
        self._version, self._end_s = 0, 0.0

    def prepare(self) -> None:
        """Load data, build the model, pay first-time costs, and wait for every worker's greeting.

        Raises InputError or MachineError when the job cannot be done here, NodeLost for a missing worker.
        """
        job = self._job
        self._hub = AsyncHub(self._node, peers(job))
        self._losses = Losses(self._node, job, self._hub)
        self._replica = Replica(job)
        count = len(open_task(job.train).train_set()[1])
        self._batches = Batches(count, job.train.batch, job.workers, job.seed)
        self._stopping = Stopping(job.train.stop, self._batches.steps_per_epoch)
        shard = self._replica.shards[0]
        self._reply = Reply(job.algorithm, shard.layout)
        # on the way from message to replica nothing may be lost: the row's coding is for parameters
        exact = replace(job.algorithm, down="fp32", down_options={})
        self._gradient = Mean(replace(job, algorithm=exact), shard)
        rehearse(job, self._replica)
        self._watch = Watch(self._node, job, self._replica)
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
        """Of the run: that of the gradient applied last, counted from 1."""
        return (self._version + self._job.workers - 1) // self._job.workers

    def _apply(self, message: Message) -> bool:
        """Whether ``message``'s gradient was the last."""
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
        """What is done at the end of a step of the run, while workers compute."""
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
