"""What a server records of workers that were lost and of gradients that it dropped."""

from __future__ import annotations

from testbed.exchange.kinds import ServerSide
from testbed.node import Node
from testbed.record.apart_events import DroppedRecord, LostRecord
from testbed.train.job import Job
from testbed.train.seen import seen


class Losses:
    """Of ``exchange``, where it has any: one in lockstep loses nobody and drops nothing."""

    def __init__(self, node: Node, job: Job, exchange: ServerSide) -> None:
        self._node, self._job, self._exchange = node, job, exchange
        self._noted = 0

    def note(self, step: int) -> None:
        """Record what is new; the run is at ``step``."""
        crowd = getattr(self._exchange, "crowd", None)
        if crowd is None:
            return
        for lost in crowd.lost[self._noted :]:
            record = LostRecord(self._job.node, lost.node, step, self._node.now(), lost.reason)
            self._node.record(record.to_json())
        self._noted = len(crowd.lost)
        dropped = getattr(self._exchange, "dropped", [])
        for message in dropped:
            self._node.record(
                DroppedRecord(self._job.node, message.step, seen(self._node, message)).to_json()
            )
        dropped.clear()
