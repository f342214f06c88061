"""Messages of runs with parameter servers: each worker's gradients, and every server's answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from testbed.errors import InputError
from testbed.messages.node_log import NodeLog
from testbed.messages.trace import Operation
from testbed.record.groups import answered, followed

if TYPE_CHECKING:
    from testbed.messages.of_run import Told

Record = Mapping[str, Any]


def server_operations(told: Told) -> dict[str, list[Operation]]:
    """By node. A server answers once everybody's message is there; a worker goes on once it has all answers."""
    rounds, _ = followed(told.events)
    parts: dict[int, list[Record]] = {}
    for part in rounds:
        parts.setdefault(int(part["step"]), []).append(part)
    logs = {name: NodeLog() for name in [*told.servers, *told.workers]}
    steps = sorted(parts)
    for step in steps:
        for part in parts[step]:
            _serve(told, logs[str(part["node"])], part)
    for worker in told.workers:
        _work(told, logs[worker], worker, [parts[step] for step in steps])
    return {name: log.operations for name, log in logs.items()}


def _serve(told: Told, log: NodeLog, part: Record) -> None:
    """A server's side of a step, or of a bucket of it."""
    step, tag, messages = int(part["step"]), _tag(part), part["messages"]
    came = [
        log.message("receive", told.numbers[int(m["sender"])], int(m["bytes"]), tag, [], step)
        for m in messages
    ]
    last_s, begin_s = max(float(m["last_s"]) for m in messages), float(part["send_start_s"])
    # the answer to a bucket may have waited for others' to be sent, as it will again
    took_s = float(part["aggregate_s"]) if "bucket" in part else begin_s - last_s
    averaged = log.compute(told.model_s(took_s), came, told.model_s(last_s), step)
    for peer in answered(part):
        at_s = told.model_s(begin_s)
        log.message("send", told.numbers[peer], _reply(part), tag, [averaged], step, at_s)


def _work(told: Told, log: NodeLog, worker: str, steps: list[list[Record]]) -> None:
    """A worker's side of all steps; of those in which it rests it takes in the answers."""
    taken = [*told.events["step"], *told.events.get("rest", [])]
    ends = {int(one["step"]): one for one in taken if one["node"] == worker}
    number = next(number for number, name in told.numbers.items() if name == worker)
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
            last = log.compute(told.model_s(begin_s - free_s), answers, told.model_s(free_s), step)
            after = []
        answers = []
        for message, part in own:
            at_s, size = told.model_s(message["sent_s"]), int(message["bytes"])
            last = log.message("send", str(part["node"]), size, _tag(part), [last], step, at_s)
        for part in parts:
            wait = [last] if own else after
            server = str(part["node"])
            answers.append(log.message("receive", server, _reply(part), _tag(part), wait, step))
        free_s = _read_s(ends[step])
    end_s = float(ends[int(steps[-1][0]["step"])]["end_s"])
    log.compute(told.model_s(end_s - free_s), answers, told.model_s(free_s), step)


def _read_s(end: Record) -> float:
    """When all of a step's answers had been read."""
    if end["kind"] == "rest":
        return float(end["last_s"])
    return float(end["end_s"]) - float(end["apply_s"]) - float(end["decompress_s"])


def _sent(part: Record, number: int) -> Any:
    """What that worker sent; None where it rested."""
    return next((one for one in part["messages"] if int(one["sender"]) == number), None)


def _reply(part: Record) -> int:
    """Bytes of an answer to one worker."""
    return int(part["bytes_down"]) // len(answered(part))


def _tag(part: Record) -> int:
    """The bucket: what the messages of a step between two nodes differ in."""
    return int(part.get("bucket", 0))
