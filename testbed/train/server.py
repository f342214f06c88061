"""The parameter server: averages the workers' gradients, answers all of them, and measures accuracy."""

from __future__ import annotations

from typing import Any, cast

from testbed.exchange.kinds import LeavingServer
from testbed.node import Node
from testbed.record.events import EpochRecord
from testbed.train.averager import Answers, Averager, BucketsAverager
from testbed.train.batches import Batches
from testbed.train.data import open_task
from testbed.train.job import Job
from testbed.train.losses import Losses
from testbed.train.peers import peers, served
from testbed.train.rehearsal import rehearse
from testbed.train.replica import Replica
from testbed.train.stop import Stopping
from testbed.train.watch import Watch


class ShardServer:
    """One of several servers: averages its shards, and keeps no parameters. ``prepare``, then ``run`` from t0 on.

    Its rank says which: they go round. It decides which step is the last, as the others do, by numbers alone: a run
    with several servers has no accuracy to stop at, and the first worker measures it.
    """

    def __init__(self, node: Node, job: Job) -> None:
        self._node, self._job = node, job
        self._step, self._end_s = 0, 0.0

    def prepare(self) -> None:
        """Load data, build the model, pay first-time costs, and wait for every worker's greeting.

        Raises InputError or MachineError when the job cannot be done here, NodeLost for a missing worker.
        """
        job = self._job
        self._exchange = served(job)(self._node, peers(job))
        self._losses = Losses(self._node, job, self._exchange)
        replica = Replica(job)
        count = len(open_task(job.train).train_set()[1])
        self._batches = Batches(count, job.train.batch, job.workers, job.seed)
        self._stopping = Stopping(job.train.stop, self._batches.steps_per_epoch)
        averager = BucketsAverager if job.algorithm.bucket_bytes else Averager
        own = [shard for shard in replica.shards if shard.number % job.servers == job.rank]
        self._averager = averager(self._node, job, self._exchange, own)
        rehearse(job, replica)
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
        """What is done while the workers compute the next step."""

    def _outcome(self) -> dict[str, Any]:
        return {"parameters": None}


class Server(ShardServer):
    """The only server of a run.

    It applies every update to a replica of its own, on which it measures test accuracy while the workers compute.
    """

    def _equip(self, replica: Replica) -> None:
        self._replica = replica
        if self._job.absences:
            cast(LeavingServer, self._exchange).state = replica.state
        self._watch = Watch(self._node, self._job, replica)
        self._watch.rehearse()

    def _ends(self, step: int) -> bool:
        """A run that stops at an accuracy waits for evaluations: which step is the last must not depend on
        how fast this machine evaluates."""
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
