"""The messages of a finished run, out of its records; times in model time, to the microsecond."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import InputError
from testbed.messages.of_peers import peers_operations, ring_operations
from testbed.messages.of_servers import server_operations
from testbed.messages.trace import MessageTrace, Operation
from testbed.record.directory import MANIFEST, read_events, read_json
from testbed.record.manifest import recorded_every
from testbed.record.summary import finished

Records = Mapping[str, Sequence[dict[str, Any]]]
"""Of a run, by kind."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a run's records say, and who is who."""

    algorithm: Mapping[str, Any]
    dilation: float
    servers: list[str]
    """By rank."""
    workers: list[str]
    numbers: Mapping[int, str]
    """Names by number in frames."""
    events: Records

    def model_s(self, wall_s: float) -> float:
        """Model seconds, to the microsecond; what clocks make negative is none."""
        return max(0.0, round(wall_s / self.dilation, 6))


_MAKE: Mapping[str, Callable[[Told], dict[str, list[Operation]]]] = {
    "ps": server_operations,
    "peers": peers_operations,
    "ring": ring_operations,
}
_WHY_NOT = {
    "ps-async": "its server answers each gradient by itself, and its records do not say which answer went out when",
    "ps-backup": "it goes on without some of its messages",
    "multicast": "one copy goes to several nodes, and an operation of a trace has one receiver",
    "coded": "its packets are for several nodes at once, and an operation of a trace has one receiver",
}
"""Exchanges that leave records of their messages which a trace cannot hold."""
_LIBRARY = "a library's own connections carry its messages, and the records have their sums alone"


def of_run(directory: Path) -> MessageTrace:
    """The trace of the run in ``directory``. Raises InputError where its records do not tell of single messages."""
    told = _told(directory)
    exchange = str(told.algorithm["exchange"])
    if exchange not in _MAKE:
        why = _WHY_NOT.get(exchange, _LIBRARY)
        raise _refusal(directory, f"the exchange {exchange!r} cannot be recorded: {why}")
    if exchange != "ps" and told.events.get("rest"):
        raise _refusal(
            directory, f"workers rested, and of {exchange!r} no record says who sent what then"
        )
    if told.algorithm.get("overlap"):
        why = "with overlap, messages wait for single layers, and not for a whole computation"
        raise _refusal(directory, f"{told.algorithm['name']!r} cannot be recorded: {why}")
    operations = _MAKE[exchange](told)
    names = [name for name in (*told.servers, *told.workers) if name in operations]
    roles = {name: "server" if name in told.servers else "worker" for name in names}
    return MessageTrace({n: tuple(operations[n]) for n in names}, roles, directory.resolve().name)


def _told(directory: Path) -> Told:
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
    return Told(
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
        return "a job's own connections are counted as a whole, and where one message ends no record says"
    if "messages" in row:
        return "the run replayed messages itself: its messages.jsonl is the trace"
    return "nothing was trained: there were no messages but those that filled the links"


def _refusal(directory: Path, why: str) -> InputError:
    return InputError(
        why, where=str(directory), hint=f"Runs by the exchanges {', '.join(_MAKE)} can be recorded"
    )
