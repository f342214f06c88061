"""Workers and a server without a model: they wait as long and send as much as if they trained.

For questions about networks alone (``train: {gradients: none}``). The exchange, the frames and the records are those of
real training; there is no loss, no accuracy, and no content.
"""

from __future__ import annotations

from math import nan
from typing import Any
from zlib import crc32

from testbed.exchange.base import Travel, together
from testbed.node import Node
from testbed.record.events import RoundRecord, StepRecord
from testbed.train.job import Job
from testbed.train.pace import Pace
from testbed.train.peers import exchange_kind, peers
from testbed.train.seen import seen, way


class PayloadWorker:
    """A worker that sends zeros."""

    def __init__(self, node: Node, job: Job) -> None:
        self._node, self._job = node, job
        self._payloads = [bytes(sizes.up) for sizes in job.sizes]
        self._crc = crc32(bytes(sum(map(len, self._payloads))))
        self._sent = sum(sizes.sent for sizes in job.sizes)
        self._size = sum(sizes.size for sizes in job.sizes)
        self._density = float(job.algorithm.options.get("density", 1.0))
        self._pace = Pace(node, job.train.pace)

    def prepare(self) -> None:
        """Greet every server."""
        self._exchange = exchange_kind(self._job).worker(self._node, peers(self._job))
        self._exchange.greet()

    def run(self) -> dict[str, Any]:
        """Until the server says which step is the last; returns a summary of the run."""
        node, exchange = self._node, self._exchange
        node.sleep_until(0.0)
        step = bytes_up = bytes_down = overruns = 0
        while exchange.last_step != step:
            step += 1
            start_s = node.now()
            overran = self._pace.hold(start_s)
            end_s = node.now()
            tickets = [exchange.submit(step, i, one) for i, one in enumerate(self._payloads)]
            for ticket in tickets:
                ticket.wait()
            travel = together([ticket.travel for ticket in tickets])
            if node.recording:
                node.record(self._record(step, start_s, end_s, overran, travel).to_json())
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
            "mean_k": self._density,
            "overruns": overruns,
            "bytes_up": bytes_up,
            "bytes_down": bytes_down,
            "bytes_sent": exchange.bytes_sent,
            "bytes_received": exchange.bytes_received,
        }

    def _record(
        self, step: int, start_s: float, end_s: float, overran: bool, travel: Travel
    ) -> StepRecord:
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
            density=self._density,
            sent_count=self._sent,
            size=self._size,
            loss=nan,
            accuracy=nan,
            overran=overran,
            compress_cpu_s=0.0,
            apply_cpu_s=0.0,
            payload_crc=self._crc,
            selection=None,
            controller=None,
        )


class PayloadServer:
    """A server that answers with zeros."""

    def __init__(self, node: Node, job: Job) -> None:
        self._node, self._job, self._sizes = node, job, job.sizes[job.rank]
        self._payload = bytes(self._sizes.down)

    def prepare(self) -> None:
        """Wait for every worker's greeting."""
        self._exchange = exchange_kind(self._job).server(self._node, peers(self._job))
        self._exchange.welcome()

    def run(self) -> dict[str, Any]:
        """Serve rounds until the last step; returns a summary."""
        node, exchange = self._node, self._exchange
        node.sleep_until(0.0)
        last, bytes_down, end_s = self._job.train.stop.steps or 0, 0, 0.0
        for step in range(1, last + 1):
            messages = exchange.gather(step, self._job.rank)
            sent = exchange.broadcast(step, self._job.rank, self._payload, last=step == last)
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
                union_count=self._sizes.union,
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
