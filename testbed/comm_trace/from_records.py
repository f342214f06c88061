"""A trace of a finished run's messages, out of its records: of runs with parameter servers, of
workers among themselves, and of a ring as single messages. Times in model time, to the
microsecond.

In a ring, what is summed up is cut into as many segments as there are nodes. In each of 2(n - 1)
hops every node sends one to the next and receives another from the one before it (Patarasuk and
Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).

Records of rings and of peers have a step's messages together: what each of them was follows from
the exchange's own rule, and the sums have to agree with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from testbed.comm_trace.trace import MessageTrace, NodeLog, TraceOperation
from testbed.errors import InputError
from testbed.fidelity.service_curve import answered, followed
from testbed.fidelity.summary import finished
from testbed.records.manifest import recorded_every
from testbed.records.run_directory import MANIFEST, read_events, read_json
from testbed.records.stored import Events, Record, Records, by_number
from testbed.transport.frame import HEADER_BYTES


@dataclass(frozen=True, slots=True)
class RingHop:
    """The part of a node in one hop of a ring.

    Units (elements, or bytes) of the segments that it sends and receives.
    """

    number: int
    next: str
    before: str
    sent: int
    received: int


def hops(rank: int, nodes: Sequence[str], size: int) -> Iterator[RingHop]:
    """All hops of the node of ``rank``; none if it is alone. The first segments are longer."""
    count = len(nodes)
    each, over = divmod(size, count)
    segments = [each + (number < over) for number in range(count)]
    for number in range(2 * (count - 1)):
        sent, received = segments[(rank - number) % count], segments[(rank - number - 1) % count]
        yield RingHop(number, nodes[(rank + 1) % count], nodes[rank - 1], sent, received)


def pass_round(
    log: NodeLog,
    turns: Iterator[RingHop],
    bytes_of: Callable[[int], int],
    after: int,
    step: int | None,
    first_tag: int = 0,
) -> list[int]:
    """Add a node's hops to ``log``; returns what whoever goes on waits for.

    ``bytes_of``: what a message with so many units takes. What was received is sent in the next
    hop.
    """
    came, sent = after, after
    for hop in turns:
        tag, out, back = first_tag + hop.number, bytes_of(hop.sent), bytes_of(hop.received)
        sent = log.message("send", hop.next, out, tag, sorted({came, sent}), step)
        came = log.message("receive", hop.before, back, tag, [], step)
    return sorted({came, sent})


Exchange = Callable[[NodeLog, Record, int], list[int]]
"""Adds a step's messages after the computation; returns what the next computation waits for."""
_VALUE_BYTES = {"fp32": 4, "bf16": 2}
"""Bytes of a value in a ring's segment, by type."""


def peers_operations(records: RunRecords) -> dict[str, list[TraceOperation]]:
    """Everybody sends everybody else the same message."""
    receivers = max(1, len(records.workers) - 1)
    sizes = {
        (str(s["node"]), int(s["step"])): int(s["bytes_up"]) // receivers for s in _steps(records)
    }

    def exchange_of(worker: str) -> Exchange:
        others = [peer for peer in records.workers if peer != worker]

        def exchange(log: NodeLog, record: Record, computed: int) -> list[int]:
            step, at_s = int(record["step"]), records.model_s(_sending_s(record))
            for peer in others:
                log.message("send", peer, sizes[worker, step], 0, [computed], step, at_s)
            return [
                log.message("receive", peer, sizes[peer, step], 0, [computed], step)
                for peer in others
            ]

        return exchange

    return {worker: _worked(records, worker, exchange_of(worker)) for worker in records.workers}


def ring_operations(records: RunRecords) -> dict[str, list[TraceOperation]]:
    """Segments go round, each when the one before has come (``exchange.ring_all_reduce``)."""
    value = _VALUE_BYTES[records.algorithm.get("exchange_options", {}).get("values", "fp32")]

    def exchange_of(rank: int) -> Exchange:
        def exchange(log: NodeLog, record: Record, computed: int) -> list[int]:
            turns = hops(rank, records.workers, int(record["size"]))
            return pass_round(
                log, turns, lambda n: HEADER_BYTES + value * n, computed, int(record["step"])
            )

        return exchange

    workers = enumerate(records.workers)
    return {worker: _worked(records, worker, exchange_of(rank)) for rank, worker in workers}


def _worked(records: RunRecords, worker: str, exchange: Exchange) -> list[TraceOperation]:
    """A worker's steps: it computes, exchanges, and applies when all has come."""
    log, free_s, came = NodeLog(), 0.0, list[int]()
    for record in (s for s in _steps(records) if s["node"] == worker):
        step, took_s = int(record["step"]), _sending_s(record) - free_s
        computed = log.compute(records.model_s(took_s), came, records.model_s(free_s), step)
        begun = len(log.operations)
        came = exchange(log, record, computed)
        _check_sums(worker, record, log.operations[begun:])
        free_s = float(record["end_s"]) - float(record["apply_s"]) - float(record["decompress_s"])
    log.compute(
        records.model_s(float(record["end_s"]) - free_s), came, records.model_s(free_s), step
    )
    return log.operations


def _steps(records: RunRecords) -> Records:
    return records.events["step"]


def _sending_s(record: Record) -> float:
    """When a worker began to send."""
    before = ("compute_s", "compress_s", "stall_s")
    return float(record["start_s"]) + sum(float(record.get(name, 0.0)) for name in before)


def _check_sums(worker: str, record: Record, messages: list[TraceOperation]) -> None:
    """Raises InputError where the messages are not what the records have in all."""
    for kind, name in (("send", "bytes_up"), ("receive", "bytes_down")):
        total = sum(message.bytes for message in messages if message.kind == kind)
        if total != int(record[name]):
            raise InputError(
                f"step {record['step']} of {worker}: its messages come to {total} B, and the "
                f"records have {record[name]} B as {name}"
            )


def server_operations(records: RunRecords) -> dict[str, list[TraceOperation]]:
    """Return the operations by node.

    A server answers once everybody's message is there; a worker goes on once it has all answers.
    """
    rounds, _ = followed(records.events)
    parts = [own for (own,) in by_number(rounds)]
    logs = {name: NodeLog() for name in [*records.servers, *records.workers]}
    for part in chain.from_iterable(parts):
        _serve(records, logs[str(part["node"])], part)
    for worker in records.workers:
        _work(records, logs[worker], worker, parts)
    return {name: log.operations for name, log in logs.items()}


def _serve(records: RunRecords, log: NodeLog, part: Record) -> None:
    """A server's side of a step, or of a bucket of it."""
    step, tag, messages = int(part["step"]), _tag(part), part["messages"]
    came = [
        log.message("receive", records.numbers[int(m["sender"])], int(m["bytes"]), tag, [], step)
        for m in messages
    ]
    last_s, begin_s = max(float(m["last_s"]) for m in messages), float(part["send_start_s"])
    # the answer to a bucket may have waited for others' to be sent, as it will again
    took_s = float(part["aggregate_s"]) if "bucket" in part else begin_s - last_s
    averaged = log.compute(records.model_s(took_s), came, records.model_s(last_s), step)
    for peer in answered(part):
        at_s = records.model_s(begin_s)
        log.message("send", records.numbers[peer], _reply(part), tag, [averaged], step, at_s)


def _work(records: RunRecords, log: NodeLog, worker: str, steps: list[list[Record]]) -> None:
    """A worker's side of all steps; of those in which it rests it takes in the answers."""
    taken = [*records.events["step"], *records.events.get("rest", [])]
    ends = {int(record["step"]): record for record in taken if record["node"] == worker}
    number = next(number for number, name in records.numbers.items() if name == worker)
    free_s, answers = 0.0, list[int]()
    for parts in steps:
        step = int(parts[0]["step"])
        if step not in ends or any(number not in answered(part) for part in parts):
            raise InputError(f"{worker} was away in step {step}, and messages before it are gone")
        own = [pair for part in parts if (pair := (_sent(part, number), part))[0] is not None]
        own.sort(key=lambda pair: float(pair[0]["sent_s"]))
        last, after = -1, answers
        if own:
            begin_s = float(own[0][0]["sent_s"])
            last = log.compute(
                records.model_s(begin_s - free_s), answers, records.model_s(free_s), step
            )
            after = []
        answers = []
        for message, part in own:
            at_s, size = records.model_s(message["sent_s"]), int(message["bytes"])
            last = log.message("send", str(part["node"]), size, _tag(part), [last], step, at_s)
        for part in parts:
            wait = [last] if own else after
            server = str(part["node"])
            answers.append(log.message("receive", server, _reply(part), _tag(part), wait, step))
        free_s = _read_s(ends[step])
    end_s = float(ends[int(steps[-1][0]["step"])]["end_s"])
    log.compute(records.model_s(end_s - free_s), answers, records.model_s(free_s), step)


def _read_s(end: Record) -> float:
    """When all of a step's answers had been read."""
    if end["kind"] == "rest":
        return float(end["last_s"])
    return float(end["end_s"]) - float(end["apply_s"]) - float(end["decompress_s"])


def _sent(part: Record, number: int) -> Any:
    """Return the message that worker ``number`` sent; None where it rested."""
    return next((message for message in part["messages"] if int(message["sender"]) == number), None)


def _reply(part: Record) -> int:
    """Bytes of an answer to one worker."""
    return int(part["bytes_down"]) // len(answered(part))


def _tag(part: Record) -> int:
    """The bucket: what the messages of a step between two nodes differ in."""
    return int(part.get("bucket", 0))


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of a run, and the names of its nodes by role."""

    algorithm: Mapping[str, Any]
    dilation: float
    servers: list[str]
    """Names by rank."""
    workers: list[str]
    numbers: Mapping[int, str]
    """Names by number in frames."""
    events: Events

    def model_s(self, wall_s: float) -> float:
        """Model seconds, to the microsecond; what clocks make negative is none."""
        return max(0.0, round(wall_s / self.dilation, 6))


_MAKE: Mapping[str, Callable[[RunRecords], dict[str, list[TraceOperation]]]] = {
    "ps": server_operations,
    "peers": peers_operations,
    "ring": ring_operations,
}
_WHY_NOT = {
    "ps-async": (
        "its server answers each gradient by itself, and its records do not say which answer went "
        "out when"
    ),
    "ps-backup": "it goes on without some of its messages",
    "multicast": "one copy goes to several nodes, and an operation of a trace has one receiver",
    "coded": (
        "its packets are for several nodes at once, and an operation of a trace has one receiver"
    ),
}
"""Exchanges that leave records of their messages which a trace cannot hold."""
_LIBRARY = "a library's own connections carry its messages, and the records have their sums alone"


def of_run(directory: Path) -> MessageTrace:
    """The trace of a run. Raises InputError where its records do not have single messages."""
    records = _read_records(directory)
    exchange = str(records.algorithm["exchange"])
    if exchange not in _MAKE:
        why = _WHY_NOT.get(exchange, _LIBRARY)
        raise _refusal(directory, f"the exchange {exchange!r} cannot be recorded: {why}")
    if exchange != "ps" and records.events.get("rest"):
        raise _refusal(
            directory, f"workers rested, and of {exchange!r} no record says who sent what then"
        )
    if records.algorithm.get("overlap"):
        why = "with overlap, messages wait for single layers, and not for a whole computation"
        raise _refusal(directory, f"{records.algorithm['name']!r} cannot be recorded: {why}")
    operations = _MAKE[exchange](records)
    names = [name for name in (*records.servers, *records.workers) if name in operations]
    roles = {name: "server" if name in records.servers else "worker" for name in names}
    return MessageTrace({n: tuple(operations[n]) for n in names}, roles, directory.resolve().name)


def _read_records(directory: Path) -> RunRecords:
    manifest = read_json(directory / MANIFEST)
    row = manifest["algorithm"]
    if "exchange" not in row:
        raise _refusal(directory, _not_ours(row))
    if finished(directory) is None:
        raise _refusal(
            directory, "the run was cut short: what its messages waited for is not known to the end"
        )
    if (every := recorded_every(manifest)) > 1:
        raise _refusal(directory, f"only one of {every} workers has its steps recorded")
    events = read_events(directory)
    if not events.get("step"):
        raise _refusal(directory, "the run made no step")
    nodes = manifest["nodes"]
    return RunRecords(
        algorithm=row,
        dilation=float(manifest["dilation"]),
        servers=_by_rank(nodes, "server"),
        workers=_by_rank(nodes, "worker"),
        numbers={int(node["peer"]): name for name, node in nodes.items()},
        events=events,
    )


def _by_rank(nodes: Mapping[str, Mapping[str, Any]], role: str) -> list[str]:
    return sorted(
        (n for n in nodes if nodes[n]["role"] == role), key=lambda n: int(nodes[n]["rank"])
    )


def _not_ours(row: Mapping[str, Any]) -> str:
    """Why a run without an exchange of ours has no messages."""
    if "command" in row:
        return (
            "a job's own connections are counted as a whole, and where one message ends no record "
            "says"
        )
    if "messages" in row:
        return "the run replayed messages itself: its messages.jsonl is the trace"
    return "nothing was trained: there were no messages but those that filled the links"


def _refusal(directory: Path, why: str) -> InputError:
    return InputError(
        why, where=str(directory), hint=f"Runs by the exchanges {', '.join(_MAKE)} can be recorded"
    )
