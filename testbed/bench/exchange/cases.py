"""Cases of ``testbed bench exchange``: a row for each exchange, the cells (nodes, bytes, rate) it
is measured in, a node's part in one, and what a measurement came to. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from statistics import fmean
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from testbed.bench.results import median, percentile, times
from testbed.errors import InputError
from testbed.exchange.coded.schemes import loads, most_received
from testbed.scenario.link_state import wire_bytes
from testbed.units import Rate

Vector = NDArray[np.float32]

SERVER = 0
"""The server's number; the other nodes have 1 and the following."""


@dataclass(frozen=True, slots=True)
class BenchTask:
    """Rounds of one exchange, as a node is told of them.

    ``nodes``: those that have gradients; ``bytes``: of a gradient, float32; ``address``: of every
    node by number, the server's among them; ``device``: of the network, in every node's namespace.
    """

    exchange: str
    own: int
    nodes: int
    bytes: int
    addresses: Mapping[int, str]
    port: int
    device: str
    warm_up: int
    run: int
    timeout_s: float

    @property
    def workers(self) -> range:
        """Numbers of those that have gradients, by rank."""
        return range(1, self.nodes + 1)


class BenchPart(ABC):
    """A node's part in an exchange, ready for rounds once it is made: connections exist."""

    @abstractmethod
    def round(self, step: int) -> None:
        """One round, counted from 1: every node sends its gradient, and has the sum (or all of
        them) at the end."""

    @abstractmethod
    def close(self) -> None:
        """End it, together with the others."""


def gradient(task: BenchTask) -> Vector:
    """A node's own: its number, everywhere."""
    return np.full(task.bytes // 4, task.own, dtype=np.float32)


def add(vectors: Sequence[Vector], total: Vector) -> Vector:
    """The sum in order of rank, into ``total``."""
    total[:] = vectors[0]
    for vector in vectors[1:]:
        np.add(total, vector, out=total)
    return total


Loads = Callable[[int, int], Sequence[float]]
"""Function of nodes and a gradient's bytes to bytes on the busiest link direction, in each phase of
a round."""


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
    """An exchange. ``make``: ``module:function`` that returns a node's part; its further arguments
    are ``options``."""

    name: str
    make: str
    loads: Loads = through_server
    served: bool = True
    """True if a server takes part."""
    copies: Callable[[int], tuple[float, float]] = lambda _nodes: (1.0, 1.0)
    """Multiples of a gradient's size that one of so many nodes receives and sends in a round: else
    it went elsewhere."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def part(self, task: BenchTask) -> BenchPart:
        """A node's part, connected."""
        module, _, function = self.make.partition(":")
        part: BenchPart = getattr(import_module(module), function)(task, **self.options)
        return part

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
        return float(min(load.received for load in each)), float(min(load.sent for load in each))

    options = {"kind": "coded", "options": {"scheme": scheme, "r": r}}
    return Entry(name, _OURS, received, False, least, options)


_OURS = "testbed.bench.exchange.nodes:make"
IPERF = "iperf3"
"""No exchange: what the links carry, as rounds."""

EXCHANGES = {
    row.name: row
    for row in (
        Entry("ps-threads", _OURS, options={"kind": "ps", "endpoint_kind": "threads"}),
        Entry("ps-loop", _OURS, options={"kind": "ps", "endpoint_kind": "loop"}),
        Entry("peers", _OURS, to_all, False, _others, {"kind": "peers"}),
        Entry("multicast", _OURS, to_all, False, _one_copy, {"kind": "multicast"}),
        Entry("ring", _OURS, around, False, _twice_around, {"kind": "ring"}),
        _coded("cssgd-r2", "literal", 2),
        _coded("replicated-r2", "replicated", 2),
        _coded("grouped-r2", "grouped", 2),
        _coded("combined-r2", "combined", 2),
        Entry("allreduce", _OURS, around, False, _twice_around, {"kind": "allreduce"}),
        Entry("gloo", "testbed.bench.exchange.pytorch:make_gloo"),
        Entry("rpc", "testbed.bench.exchange.pytorch:make_rpc"),
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


UNSHAPED = "unshaped"
LINKS = (UNSHAPED, "100 Mbit/s", "1.3 Gbit/s")
NODES = (4, 8, 16)
BYTES = (1_000, 100_000, 5_000_000, 44_000_000)
_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class BenchLink:
    """All links of a measurement, both directions. ``rate_bits`` None: the bare cables."""

    name: str
    rate_bits: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """``unshaped`` or a rate with its unit. Raises InputError."""
        if text == UNSHAPED:
            return cls(UNSHAPED, None)
        try:
            rate = Rate.parse(text)
        except ValueError as error:
            raise InputError(str(error), where="--link", hint=f"Or {UNSHAPED!r}") from None
        if not rate:
            raise InputError("nothing passes a link of 0 bit/s", where="--link")
        return cls(str(rate), int(rate))


@dataclass(frozen=True, slots=True)
class ExchangeCell:
    """One row of the result. ``nodes``: that have gradients; ``bytes``: of each, float32."""

    exchange: str
    nodes: int
    bytes: int
    link: BenchLink

    @property
    def entry(self) -> Entry:
        """The exchange's row."""
        return entry(self.exchange)

    @property
    def name(self) -> str:
        """For progress and complaints."""
        return f"{self.exchange}, {self.nodes} nodes, {self.bytes} B, {self.link.name}"

    @property
    def least_s(self) -> float | None:
        """Return the least time of a round on these links, if its phases follow each other; None:
        nothing limits it.

        The busiest link of every phase counts, with the headers of full segments.
        """
        if self.link.rate_bits is None:
            return None
        loads = self.entry.loads(self.nodes, self.bytes)
        return sum(8 * wire_bytes(round(load)) / self.link.rate_bits for load in loads)

    @property
    def moved(self) -> float:
        """Bytes of gradients and sums that a round moves over the network."""
        sent = sum(self.entry.carried(own, self.nodes, self.bytes)[1] for own in self.numbers)
        return float(sent)

    @property
    def is_whole(self) -> bool:
        """Return whether every node receives and sends something: a single peer does not."""
        least = (min(self.entry.carried(own, self.nodes, self.bytes)) for own in self.numbers)
        return min(least) > 0

    @property
    def numbers(self) -> range:
        """Return the numbers of all nodes that take part."""
        return range(0 if self.entry.served else 1, self.nodes + 1)


def check_bytes(sizes: list[int]) -> list[int]:
    """Raises InputError for a size that is not made of float32."""
    for size in sizes:
        if size % _WORD_BYTES or size <= 0:
            raise InputError(f"{size} B are no whole number of float32", where="--bytes")
    return sizes


@dataclass(frozen=True, slots=True)
class ExchangeSample:
    """``rounds_s``: how long each took; ``cpu_s_per_gb``: processor seconds of all nodes' processes
    per 10⁹ bytes of gradients and sums; ``carried``: bytes over what had to be carried, at the
    interface where least was."""

    rounds_s: Sequence[float]
    cpu_s_per_gb: float | None
    carried: float | None = None

    @property
    def round_s(self) -> float:
        """Mean time of a round."""
        return fmean(self.rounds_s)


def bypass(cell: ExchangeCell, rounds: int, counted: Mapping[int, tuple[int, int]]) -> float:
    """Bytes that interfaces received and sent over those that had to pass them: the least of all
    nodes and both ways."""
    shares = []
    for own, (received, sent) in counted.items():
        due = cell.entry.carried(own, cell.nodes, cell.bytes)
        shares += [received / (rounds * due[0]), sent / (rounds * due[1])]
    return min(shares)


def row(
    cell: ExchangeCell, samples: Sequence[ExchangeSample], failures: Sequence[str]
) -> dict[str, Any]:
    """Medians over the repetitions; None for what was not measured."""
    rates = [1 / sample.round_s for sample in samples]
    several = [sample for sample in samples if len(sample.rounds_s) > 1]
    latest = [percentile(sample.rounds_s, 0.99) for sample in several]
    return {
        "exchange": cell.exchange,
        "nodes": cell.nodes,
        "bytes": cell.bytes,
        "link": cell.link.name,
        "rounds_per_s": median(rates),
        "line_rate_fraction": median(times(cell.least_s, each.round_s) for each in samples),
        "p99_ms": median(None if late is None else 1e3 * late for late in latest),
        "cpu_s_per_gb": median(each.cpu_s_per_gb for each in samples),
        "lowest": min(rates, default=None),
        "highest": max(rates, default=None),
        "rounds": median(len(sample.rounds_s) for sample in several),
        "carried": median(sample.carried for sample in samples),
        "failure": failures[0] if failures else None,
        "failures": len(failures),
    }
