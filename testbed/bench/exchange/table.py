"""What is compared: a row for each exchange. Imported where it is wanted: some need PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from testbed.bench.exchange.part import SERVER, Part, Task
from testbed.errors import InputError
from testbed.exchange.coded.load import loads, most_received

Loads = Callable[[int, int], Sequence[float]]
"""Of a number of nodes and the bytes of a gradient: bytes on the busiest link direction, in each phase of a round."""


def through_server(nodes: int, size: int) -> Sequence[float]:
    """Everything into the server, then everything out of it."""
    return nodes * size, nodes * size


def to_all(nodes: int, size: int) -> Sequence[float]:
    """Every node receives all others' while it sends its own to each of them."""
    return ((nodes - 1) * size,)


def around(nodes: int, size: int) -> Sequence[float]:
    """As many segments as nodes go round twice, but for the last hop; every hop is a phase."""
    return (size / nodes,) * (2 * (nodes - 1))


@dataclass(frozen=True, slots=True)
class Entry:
    """An exchange. ``make``: ``module:function`` that returns a node's part; its further arguments are ``options``."""

    name: str
    make: str
    loads: Loads = through_server
    served: bool = True
    """Whether a server takes part."""
    copies: Callable[[int], tuple[float, float]] = lambda _nodes: (1.0, 1.0)
    """Of a gradient's size, what one of so many nodes receives in a round, and sends: else it went elsewhere."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def part(self, task: Task) -> Part:
        """A node's part, connected."""
        module, _, function = self.make.partition(":")
        made: Part = getattr(import_module(module), function)(task, **self.options)
        return made

    def carried(self, own: int, nodes: int, size: int) -> tuple[float, float]:
        """Bytes that a node's interface receives and sends at least in a round."""
        received, sent = (nodes, nodes) if own == SERVER else self.copies(nodes)
        return received * size, sent * size


def _others(nodes: int) -> tuple[float, float]:
    return float(nodes - 1), float(nodes - 1)


def _one_copy(nodes: int) -> tuple[float, float]:
    return float(nodes - 1), 1.0


def _twice_around(nodes: int) -> tuple[float, float]:
    return 2 * (nodes - 1) / nodes, 2 * (nodes - 1) / nodes


def _coded(name: str, scheme: str, r: int) -> Entry:
    """Block gradients by a scheme; the busiest link is that of the node that receives most."""

    def received(nodes: int, size: int) -> Sequence[float]:
        return (float(most_received(scheme, nodes, r)) * size,)

    def least(nodes: int) -> tuple[float, float]:
        each = loads(scheme, nodes, r)
        return float(min(one.received for one in each)), float(min(one.sent for one in each))

    options = {"kind": "coded", "options": {"scheme": scheme, "r": r}}
    return Entry(name, _OURS, received, False, least, options)


_OURS = "testbed.bench.exchange.ours:make"
IPERF = "iperf3"
"""No exchange: what the links carry, as rounds."""

EXCHANGES = {
    row.name: row
    for row in (
        Entry("ps-threads", _OURS, options={"kind": "ps", "way": "threads"}),
        Entry("ps-loop", _OURS, options={"kind": "ps", "way": "loop"}),
        Entry("peers", _OURS, to_all, False, _others, {"kind": "peers"}),
        Entry("multicast", _OURS, to_all, False, _one_copy, {"kind": "multicast"}),
        Entry("ring", _OURS, around, False, _twice_around, {"kind": "ring"}),
        _coded("cssgd-r2", "literal", 2),
        _coded("replicated-r2", "replicated", 2),
        _coded("grouped-r2", "grouped", 2),
        _coded("combined-r2", "combined", 2),
        Entry("allreduce", _OURS, around, False, _twice_around, {"kind": "allreduce"}),
        Entry("gloo", "testbed.bench.exchange.gloo:make"),
        Entry("rpc", "testbed.bench.exchange.rpc:make"),
        Entry(IPERF, ""),
    )
}


def entry(name: str) -> Entry:
    """A row by its name. Raises InputError for one that there is none of."""
    if name not in EXCHANGES:
        raise InputError(
            f"there is no exchange {name!r} to measure",
            where="--exchange",
            hint=f"There are {', '.join(EXCHANGES)}",
        )
    return EXCHANGES[name]
