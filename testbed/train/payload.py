"""Workers and a server without a model: they wait as long and send as much as if they trained.

For questions about networks alone (``train: {gradients: none}``). The exchange, the frames and the records are those of
real training; there is no loss, no accuracy, and no content.
"""

from __future__ import annotations

from functools import lru_cache
from math import nan
from typing import Any
from zlib import crc32

from testbed.exchange.base import Travel, together
from testbed.node import Node
from testbed.record.events import RoundRecord, StepRecord
from testbed.train.job import Job
from testbed.train.pace import Pace
from testbed.train.peers import exchange_kind, peers, served
from testbed.train.seen import seen, way
from testbed.train.sizes import Sizes
from testbed.train.step_times import step_times


def _at(job: Job, step: int) -> tuple[Sizes, ...]:
    """By server, of ``step``, counted from 1."""
    return job.sizes[(step - 1) % len(job.sizes)]


@lru_cache(maxsize=64)
def _zeros(size: int) -> bytes:
    return bytes(size)


@lru_cache(maxsize=64)
def _crc(size: int) -> int:
    return crc32(bytes(size))


class PayloadWorker:
    """A worker that sends zeros."""

    def __init__(self, node: Node, job: Job) -> None:
        self._node, self._job = node, job
        self._pace = Pace(node, step_times(job))

    def prepare(self) -> None:
        """Greet every server."""
        job = self._job
        self._exchange = exchange_kind(job).worker(self._node, peers(job, job.train.stop.steps))
        self._exchange.greet()

    def run(self) -> dict[str, Any]:
        """Until the server says which step is the last; returns a summary of the run."""
        node, exchange = self._node, self._exchange
        node.sleep_until(0.0)
        step = bytes_up = bytes_down = overruns = 0
        density = 0.0
        while exchange.last_step != step:
            step += 1
            start_s = node.now()
            overran = self._pace.hold(step, start_s)
            end_s = node.now()
            sizes = _at(self._job, step)
            tickets = [exchange.submit(step, i, _zeros(one.up)) for i, one in enumerate(sizes)]
            for ticket in tickets:
                ticket.wait()
            travel = together([ticket.travel for ticket in tickets])
            if node.recording:
                made = self._record(step, (start_s, end_s), sizes, overran, travel)
                node.record(made.to_json())
            density += sizes[0].density
            bytes_up += travel.bytes_up
            bytes_down += travel.bytes_down
            overruns += overran
        exchange.close()
        return {
            "role": "worker",
            "node": self._job.node,
            "steps": step,
            "end_s": travel.last_s,
            "parameters": "",
            "mean_k": density / step,
            "overruns": overruns,
            "bytes_up": bytes_up,
            "bytes_down": bytes_down,
            "bytes_sent": exchange.bytes_sent,
            "bytes_received": exchange.bytes_received,
        }

    def _record(
        self,
        step: int,
        computed_s: tuple[float, float],
        sizes: tuple[Sizes, ...],
        overran: bool,
        travel: Travel,
    ) -> StepRecord:
        start_s, end_s = computed_s
        return StepRecord(
            node=self._job.node,
            step=step,
            epoch=1,
            start_s=start_s,
            compute_s=end_s - start_s,
            busy_s=0.0,
            **way(travel, end_s),
            decompress_s=0.0,
            apply_s=0.0,
            end_s=travel.last_s,
            density=sizes[0].density,
            sent_count=sum(one.sent for one in sizes),
            size=sum(one.size for one in sizes),
            loss=nan,
            accuracy=nan,
            overran=overran,
            compress_cpu_s=0.0,
            apply_cpu_s=0.0,
            payload_crc=_crc(sum(one.up for one in sizes)),
            selection=None,
            controller=None,
            pace_s=self._pace.asked_s(step),
        )


class PayloadServer:
    """A server that answers with zeros."""

    def __init__(self, node: Node, job: Job) -> None:
        self._node, self._job = node, job

    def prepare(self) -> None:
        """Wait for every worker's greeting."""
        self._exchange = served(self._job)(self._node, peers(self._job))
        self._exchange.welcome()

    def run(self) -> dict[str, Any]:
        """Serve rounds until the last step; returns a summary."""
        node, exchange = self._node, self._exchange
        node.sleep_until(0.0)
        last, bytes_down, end_s = self._job.train.stop.steps or 0, 0, 0.0
        for step in range(1, last + 1):
            sizes = _at(self._job, step)[self._job.rank]
            messages = exchange.gather(step, self._job.rank)
            sent = exchange.broadcast(step, self._job.rank, _zeros(sizes.down), last=step == last)
            bytes_down += sent.frame_bytes
            end_s = sent.end_s
            record = RoundRecord(
                node=self._job.node,
                step=step,
                messages=[seen(self._node, message) for message in messages],
                aggregate_s=0.0,
                send_start_s=sent.start_s,
                send_end_s=sent.end_s,
                bytes_down=sent.frame_bytes,
                union_count=sizes.union,
            )
            node.record(record.to_json())
        exchange.farewell(last)
        return {
            "role": "server",
            "node": self._job.node,
            "steps": last,
            "end_s": end_s,
            "accuracy": None,
            "parameters": "",
            "bytes_down": bytes_down,
            "bytes_sent": exchange.bytes_sent,
            "bytes_received": exchange.bytes_received,
        }
