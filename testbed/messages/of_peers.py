"""Messages of runs whose workers exchange gradients among themselves.

Their records have a step's messages together: what each of them was follows from the exchange's own rule, and the sums
have to agree with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from testbed.errors import InputError
from testbed.exchange.frame import HEADER_BYTES
from testbed.messages.node_log import NodeLog
from testbed.messages.ring import hops, pass_round
from testbed.messages.trace import Operation

if TYPE_CHECKING:
    from testbed.messages.of_run import Told

Record = Mapping[str, Any]
Exchange = Callable[[NodeLog, Record, int], list[int]]
"""Adds a step's messages behind the computation at the place given; returns what the next computation waits for."""
_VALUE_BYTES = {"fp32": 4, "bf16": 2}
"""Of a value in a ring's segment."""


def peers_operations(told: Told) -> dict[str, list[Operation]]:
    """Everybody sends everybody else the same message."""
    many = max(1, len(told.workers) - 1)
    sizes = {(str(s["node"]), int(s["step"])): int(s["bytes_up"]) // many for s in _steps(told)}

    def exchange_of(worker: str) -> Exchange:
        others = [peer for peer in told.workers if peer != worker]

        def exchange(log: NodeLog, record: Record, computed: int) -> list[int]:
            step, at_s = int(record["step"]), told.model_s(_sending_s(record))
            for peer in others:
                log.message("send", peer, sizes[worker, step], 0, [computed], step, at_s)
            return [
                log.message("receive", peer, sizes[peer, step], 0, [computed], step)
                for peer in others
            ]

        return exchange

    return {worker: _worked(told, worker, exchange_of(worker)) for worker in told.workers}


def ring_operations(told: Told) -> dict[str, list[Operation]]:
    """Segments go round, each as soon as the one before it has come; see ``testbed.exchange.ring``."""
    value = _VALUE_BYTES[told.algorithm.get("exchange_options", {}).get("values", "fp32")]

    def exchange_of(place: int) -> Exchange:
        def exchange(log: NodeLog, record: Record, computed: int) -> list[int]:
            turns = hops(place, told.workers, int(record["size"]))
            return pass_round(
                log, turns, lambda n: HEADER_BYTES + value * n, computed, int(record["step"])
            )

        return exchange

    workers = enumerate(told.workers)
    return {worker: _worked(told, worker, exchange_of(place)) for place, worker in workers}


def _worked(told: Told, worker: str, exchange: Exchange) -> list[Operation]:
    """A worker's steps: it computes, exchanges, and applies when all has come."""
    log, free_s, came = NodeLog(), 0.0, list[int]()
    for record in (s for s in _steps(told) if s["node"] == worker):
        step, took_s = int(record["step"]), _sending_s(record) - free_s
        computed = log.compute(told.model_s(took_s), came, told.model_s(free_s), step)
        begun = len(log.operations)
        came = exchange(log, record, computed)
        _check_sums(worker, record, log.operations[begun:])
        free_s = float(record["end_s"]) - float(record["apply_s"]) - float(record["decompress_s"])
    log.compute(told.model_s(float(record["end_s"]) - free_s), came, told.model_s(free_s), step)
    return log.operations


def _steps(told: Told) -> Sequence[dict[str, Any]]:
    return told.events["step"]


def _sending_s(record: Record) -> float:
    """When a worker began to send."""
    before = ("compute_s", "compress_s", "stall_s")
    return float(record["start_s"]) + sum(float(record.get(name, 0.0)) for name in before)


def _check_sums(worker: str, record: Record, messages: list[Operation]) -> None:
    """Raises InputError where the messages are not what the records have in all."""
    for kind, name in (("send", "bytes_up"), ("receive", "bytes_down")):
        made = sum(one.bytes for one in messages if one.kind == kind)
        if made != int(record[name]):
            raise InputError(
                f"step {record['step']} of {worker}: its messages come to {made} B, and the records have "
                f"{record[name]} B as {name}"
            )
