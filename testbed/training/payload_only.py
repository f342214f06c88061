"""Workers and a server without a model: they wait as long and send as much as if they trained; and
how large their messages are.

For questions about networks alone (``train: {gradients: none}``). The exchange, the frames and the
records are those of real training; there is no loss, no accuracy, and no content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from math import nan
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

from testbed.errors import InputError
from testbed.exchange.base import TransferTiming, merge_timings
from testbed.node import Node
from testbed.records.events import RoundRecord, StepRecord
from testbed.records.run_directory import MANIFEST, read_events, read_json
from testbed.training.job import Job, PayloadSizes, message_fields, transfer_fields
from testbed.training.membership import exchange_kind, peers
from testbed.training.pacing import Pace, step_times
from testbed.training.server_role import ServerRole
from testbed.transport.frame import HEADER_BYTES

if TYPE_CHECKING:
    from torch import Generator

    from testbed.compress.compressor import Compressor
    from testbed.compress.layout import Shard
    from testbed.scenario.model import Train


_MESSAGES = 2
"""A selector takes another way once it has learnt from a first message."""


def check_sizes(train: Train, controller: str, where: str) -> None:
    """Raises InputError for what only a real gradient can decide: when to stop, what to send."""
    if train.gradients == "real":
        return
    if train.stop.steps is None or train.stop.accuracy is not None or train.stop.epochs is not None:
        raise InputError(
            "without gradients there are neither epochs nor accuracies to stop at",
            where=where,
            hint="Give `train.stop.steps`, and nothing else there",
        )
    if train.gradients == "none" and controller != "fixed":
        raise InputError(
            f"the controller {controller!r} needs gradients, and `train.gradients` is none",
            where=where,
            hint="Use algorithms of a fixed density, such as topk-0.01, or `gradients: recorded`",
        )


def sizes(job: Job) -> tuple[PayloadSizes, ...]:
    """Sizes of the messages of ``job``'s algorithm to each server, for gradients of random numbers.

    The workers' choices are taken to be independent of each other: of n elements of which each
    sends a share k, n · (1 − (1 − k)^workers) are in the mean.
    """
    import torch

    from testbed.training.replica import Replica

    replica = Replica(job)
    if exchange_kind(job).unit == "vector":
        size = replica.flat.size
        return (PayloadSizes(4 * size, 4 * size, size, size, size, 1.0),)
    compressor, generator = replica.compressor(job), torch.Generator().manual_seed(0)
    return tuple(_of(job, compressor, shard, generator) for shard in replica.shards)


def _of(job: Job, compressor: Compressor, shard: Shard, generator: Generator) -> PayloadSizes:
    import torch

    from testbed.compress.base import Sparse
    from testbed.training.averaging import UpdateEncoder

    rng, size = Random(0), shard.layout.size
    density = float(job.algorithm.options.get("density", 1.0))
    for _ in range(_MESSAGES):
        gradient = torch.randn(size, generator=generator)
        packed = compressor.compress(shard.name, gradient, density, rng)
    up, sent, indices = len(packed.payload), packed.count, None
    if sent < size:
        count = round(size * (1 - (1 - sent / size) ** job.workers))
        indices = torch.randperm(size, generator=generator)[:count].sort().values
    values = torch.randn(size if indices is None else len(indices), generator=generator)
    encoder = UpdateEncoder(job.algorithm, shard.layout)
    reply, union = encoder.average([Sparse(size, indices, values)], 1, rng)
    return PayloadSizes(up, len(reply), size, sent, union, density)


def _at(job: Job, step: int) -> tuple[PayloadSizes, ...]:
    """Return the payload sizes of ``step``, counted from 1, by server."""
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
        self._exchange.connect()

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
            tickets = [exchange.submit(step, i, _zeros(to.up)) for i, to in enumerate(sizes)]
            for ticket in tickets:
                ticket.wait()
            timing = merge_timings([ticket.travel for ticket in tickets])
            if node.recording:
                node.record(self._record(step, start_s, end_s, overran, timing).to_json())
            density += sizes[0].density
            bytes_up += timing.bytes_up
            bytes_down += timing.bytes_down
            overruns += overran
        exchange.close()
        return {
            "role": "worker",
            "node": self._job.node,
            "steps": step,
            "end_s": timing.last_s,
            "parameters": "",
            "mean_k": density / step,
            "overruns": overruns,
            "bytes_up": bytes_up,
            "bytes_down": bytes_down,
            "bytes_sent": exchange.bytes_sent,
            "bytes_received": exchange.bytes_received,
        }

    def _record(
        self, step: int, start_s: float, computed_s: float, overran: bool, timing: TransferTiming
    ) -> StepRecord:
        sizes = _at(self._job, step)
        return StepRecord(
            node=self._job.node,
            step=step,
            epoch=1,
            start_s=start_s,
            compute_s=computed_s - start_s,
            busy_s=0.0,
            **transfer_fields(timing, computed_s),
            decompress_s=0.0,
            apply_s=0.0,
            end_s=timing.last_s,
            density=sizes[0].density,
            sent_count=sum(to.sent for to in sizes),
            size=sum(to.size for to in sizes),
            loss=nan,
            accuracy=nan,
            overran=overran,
            compress_cpu_s=0.0,
            apply_cpu_s=0.0,
            payload_crc=_crc(sum(to.up for to in sizes)),
            selection=None,
            controller=None,
            pace_s=self._pace.requested_s(step),
        )


class PayloadServer(ServerRole):
    """A server that answers with zeros."""

    def _serve(self) -> bool:
        exchange, rank = self._exchange, self._job.rank
        step = self._step = self._step + 1
        last, sizes = step == self._job.train.stop.steps, _at(self._job, step)[rank]
        messages = exchange.gather(step, rank)
        sent = exchange.broadcast(step, rank, _zeros(sizes.down), last=last)
        self._bytes_down += sent.frame_bytes
        self._end_s = sent.end_s
        record = RoundRecord(
            node=self._job.node,
            step=step,
            messages=[message_fields(self._node, message) for message in messages],
            aggregate_s=0.0,
            send_start_s=sent.start_s,
            send_end_s=sent.end_s,
            bytes_down=sent.frame_bytes,
            union_count=sizes.union,
        )
        self._node.record(record.to_json())
        return last

    def _outcome(self) -> dict[str, Any]:
        return {"accuracy": None, "parameters": ""}


_NOTHING: Mapping[str, Any] = {"size": 0, "sent_count": 0, "density": 1.0}
"""Values of a worker whose steps were not recorded."""


class RecordedSizes:
    """A run directory as a source of sizes, whose workers and steps begin again after the last."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._manifest = read_json(directory / MANIFEST)

    @property
    def algorithm(self) -> str:
        """Name of the algorithm that was run."""
        return str(self._manifest["algorithm"]["name"])

    def sizes(self, job: Job) -> tuple[tuple[PayloadSizes, ...], ...]:
        """Return the sizes by step and server, of the worker ``job`` or, on a server, of the first
        worker. Raises InputError where the exchange has no server, or the run had another number
        of servers, or no finished step."""
        if exchange_kind(job).server is None:
            raise self._unfit(
                f"{self.algorithm!r} has no server, whose rounds say how long messages were"
            )
        servers, workers = self._nodes("server"), self._nodes("worker")
        if len(servers) != job.servers:
            raise self._unfit(
                f"the recorded run had {len(servers)} servers, this one has {job.servers}"
            )
        rank = job.rank if job.peer >= job.servers else 0
        worker, peer = workers[rank % len(workers)]
        steps = [
            tuple(
                self._of(rounds[name], number, worker, peer)
                for number, (name, _) in enumerate(servers)
            )
            for _, rounds in sorted(self._rounds.items())
            if len(rounds) == len(servers)
        ]
        if not steps:
            raise self._unfit("the recorded run finished no step")
        return tuple(steps)

    def _unfit(self, reason: str) -> InputError:
        return InputError(reason, where=str(self._directory))

    def _of(self, round_: Mapping[str, Any], server: int, worker: str, peer: int) -> PayloadSizes:
        """Return the sizes of what went to one server and came back; elements with the first."""
        sent = [int(m["bytes"]) for m in round_["messages"] if int(m["sender"]) == peer]
        if round_.get("others") or len(sent) != 1:
            raise self._unfit("in the recorded run not all workers took part in every step")
        down = int(round_["bytes_down"]) // len(round_["messages"])
        step = self._steps.get((worker, int(round_["step"])), _NOTHING)
        return PayloadSizes(
            up=sent[0] - HEADER_BYTES,
            down=down - HEADER_BYTES,
            size=0 if server else int(step["size"]),
            sent=0 if server else int(step["sent_count"]),
            union=int(round_["union_count"]),
            density=float(step["density"]),
        )

    def _nodes(self, role: str) -> list[tuple[str, int]]:
        """Names and numbers, by rank."""
        nodes = [
            (n["rank"], name, n["peer"])
            for name, n in self._manifest["nodes"].items()
            if n["role"] == role
        ]
        return [(name, int(peer)) for _, name, peer in sorted(nodes)]

    @cached_property
    def _rounds(self) -> dict[int, dict[str, Mapping[str, Any]]]:
        """Round records by step, then by server."""
        rounds: dict[int, dict[str, Mapping[str, Any]]] = {}
        for round_ in self._events.get("round", []):
            rounds.setdefault(int(round_["step"]), {})[str(round_["node"])] = round_
        return rounds

    @cached_property
    def _steps(self) -> dict[tuple[str, int], Mapping[str, Any]]:
        return {(str(s["node"]), int(s["step"])): s for s in self._events.get("step", [])}

    @cached_property
    def _events(self) -> dict[str, Sequence[dict[str, Any]]]:
        return read_events(self._directory)
