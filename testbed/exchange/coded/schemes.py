"""The four schemes of coded exchanges: who computes which blocks, every packet that anybody sends,
what that comes to in closed form, and its multicast groups.

n nodes, redundancy r, gradients of D elements; a block's gradient has D elements however few
samples the block has. ``literal`` is CSSGD as published (Li et al., algorithms 2–4); ``replicated``
does as much computation and codes nothing; ``grouped`` and ``combined`` code in clusters, the
latter as Compressed CDC does (Li, Maddah-Ali, Avestimehr, ISIT 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations
from math import comb, prod
from typing import Literal, NamedTuple

from testbed.errors import InputError


class MatrixSizes(int):
    """Elements of a gradient of ``matrices`` (rows, columns), ordered so that a part of it has its
    share of the columns of every matrix, as CSSGD is published; a plain number is one row."""

    matrices: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, matrices: Sequence[tuple[int, int]]) -> MatrixSizes:
        """Return the size of all of them."""
        size = cls(sum(rows * columns for rows, columns in matrices))
        size.matrices = tuple(matrices)
        return size

    def part(self, index: int, of: int) -> slice:
        """Where the ``index``-th of ``of`` parts is."""
        both = ((index * c // of, (index + 1) * c // of, r) for r, c in self.matrices)
        ends = [(rows * begin, rows * end) for begin, end, rows in both]
        return slice(sum(begin for begin, _ in ends), sum(end for _, end in ends))


class Vector(NamedTuple):
    """Columns of a block's gradient, or of a cluster's sum: what one node knows and another
    lacks."""

    kind: Literal["block", "sum"]
    number: int
    """Number of the block, or of the cluster."""
    part: int = 0
    of: int = 1
    """Which of so many parts of all columns; 0 of 1 is all of them."""

    def columns(self, size: int) -> slice:
        """Where it is in a gradient of ``size`` elements."""
        return part(0, size, self.part, self.of)

    def __str__(self) -> str:
        name = (
            f"block {self.number}" if self.kind == "block" else f"the sum of cluster {self.number}"
        )
        return name if self.of == 1 else f"part {self.part} of {name}"


class Piece(NamedTuple):
    """Part ``part`` of ``of`` of a vector: what a packet holds of it."""

    vector: Vector
    part: int = 0
    of: int = 1

    def columns(self, size: int) -> slice:
        """Where it is in a gradient of ``size`` elements."""
        if isinstance(size, MatrixSizes) and self.vector.of == 1:
            return size.part(self.part, self.of)
        whole = self.vector.columns(size)
        return part(whole.start, whole.stop, self.part, self.of)

    def within(self, size: int) -> slice:
        """Where it is in its vector."""
        columns, begin = self.columns(size), self.vector.columns(size).start
        return slice(columns.start - begin, columns.stop - begin)


class Packet(NamedTuple):
    """The wrap-around sum of ``pieces``; each of ``destinations`` lacks just one of them."""

    phase: int
    number: int
    """Among those of its sender."""
    sender: int
    destinations: frozenset[int]
    pieces: tuple[Piece, ...]

    def elements(self, size: int) -> int:
        """How many it has: as many as its longest piece. Shorter ones count as filled up with
        zeros."""
        return max(length(piece.columns(size)) for piece in self.pieces)


class Sum(NamedTuple):
    """A vector that ``holders`` make of ``blocks``, all of which they have after the first
    phase."""

    vector: Vector
    blocks: tuple[int, ...]
    holders: frozenset[int]

    @property
    def bits(self) -> int:
        """Return the bits that it is shifted right by, so that it is 32 bits wide again: ⌈log₂
        blocks⌉."""
        return (len(self.blocks) - 1).bit_length()


@dataclass(frozen=True)
class Scheme:
    """A way to share out a mini-batch among ``nodes`` (by rank), each sample to about ``r`` of
    them.

    ``holders``: by block, who computes it. ``packets``: by sender, in the order of sending.
    ``sums``: where blocks are added up before they leave their cluster; without any, the total is
    that of all blocks.
    """

    name: str
    nodes: int
    r: int
    holders: tuple[frozenset[int], ...]
    packets: tuple[tuple[Packet, ...], ...]
    sums: tuple[Sum, ...] = ()

    @cached_property
    def phases(self) -> int:
        """A phase's packets are made of what one has when all of the phases before have come."""
        return 1 + max(packet.phase for sent in self.packets for packet in sent)

    @cached_property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """Return the blocks that each node computes, ascending; by node."""
        return tuple(
            tuple(block for block, nodes in enumerate(self.holders) if node in nodes)
            for node in range(self.nodes)
        )

    @cached_property
    def incoming(self) -> tuple[tuple[Packet, ...], ...]:
        """Return the packets that come to each node, by node."""
        packets = [packet for sent in self.packets for packet in sent]
        return tuple(
            tuple(packet for packet in packets if node in packet.destinations)
            for node in range(self.nodes)
        )

    @cached_property
    def terms(self) -> Mapping[Vector, int]:
        """Return the vectors that add up to the total, each with the bits that it is shifted left
        by."""
        if self.sums:
            return {to_add.vector: to_add.bits for to_add in self.sums}
        return {Vector("block", number): 0 for number in range(len(self.holders))}

    def samples(self, block: int, count: int, speeds: Sequence[float] = ()) -> slice:
        """Where ``block`` is in a mini-batch of ``count`` samples; blocks differ by at most one
        sample. With ``speeds`` of the nodes they are in proportion to the product of those of their
        holders, and have one sample at least."""
        if not speeds:
            return part(0, count, block, len(self.holders))
        weights = [prod(speeds[node] for node in nodes) for nodes in self.holders]
        spare, whole = count - len(weights), sum(weights)
        begin, end = (
            edge + int(spare * (sum(weights[:edge]) / whole)) for edge in (block, block + 1)
        )
        return slice(begin, end)

    def work(self, node: int, count: int) -> int:
        """Samples of a mini-batch of ``count`` that ``node`` computes."""
        return sum(length(self.samples(block, count)) for block in self.blocks[node])


def part(begin: int, end: int, index: int, of: int) -> slice:
    """The ``index``-th of ``of`` parts of what lies from ``begin`` to ``end``; they differ by at
    most one."""
    size = end - begin
    return slice(begin + size * index // of, begin + size * (index + 1) // of)


def length(columns: slice) -> int:
    """How many there are in it."""
    return int(columns.stop - columns.start)


MOST_NODES = 16
_Draft = tuple[int, frozenset[int], tuple[Piece, ...]]
"""Phase, destinations and pieces of a packet that has no number yet."""


def literal(nodes: int, r: int) -> Scheme:
    """C(n,r) blocks, one for every r-subset of nodes. For every (r+1)-subset S, each i in S sends
    the sum of the parts numbered rank(i) of the blocks S∖{k}, k ≠ i, to S∖{i}: n·C(n−1,r)/r·D in
    all."""
    subsets = list(combinations(range(nodes), r))
    numbers = {subset: number for number, subset in enumerate(subsets)}

    def drafts(node: int) -> Iterator[_Draft]:
        # everybody's n-th packet goes equally far round: at any time all links have as much to
        # carry
        for steps in combinations(range(1, nodes), r):
            others = frozenset((node + step) % nodes for step in steps)
            yield 0, others, _coded(node, tuple(sorted(others | {node})), numbers)

    return _scheme("literal", nodes, r, [frozenset(subset) for subset in subsets], drafts)


def replicated(nodes: int, r: int) -> Scheme:
    """⌈n/r⌉ groups of at most r, a block for each. Its members each send a slice of it to all
    others: ⌈n/r⌉·D in all."""
    groups = _clusters(nodes, -(-nodes // r))

    def drafts(node: int) -> Iterator[_Draft]:
        number, group = _of(node, groups)
        yield 0, _others(nodes, group), _slice(Vector("block", number), node, group)

    return _scheme("replicated", nodes, r, [frozenset(group) for group in groups], drafts)


def grouped(nodes: int, r: int) -> Scheme:
    """⌈n/(r+1)⌉ clusters of at most r+1, a block for each node that lacks just it; coded inside as
    in ``literal``. Then members each send a slice of the cluster's sum to all others: (m/(m−1) +
    1)·D for a cluster of m.

    Of a single cluster nobody is outside: blocks add up as they are.
    """
    clusters = _clusters(nodes, -(-nodes // (r + 1)))

    def drafts(node: int) -> Iterator[_Draft]:
        number, cluster = _of(node, clusters)
        if len(cluster) > 1:
            yield 0, frozenset(cluster) - {node}, _inside(node, cluster)
        if len(clusters) > 1:
            sum_ = Vector("sum", number)
            yield 1, _others(nodes, cluster), _slice(sum_, node, cluster)

    sums = [
        Sum(Vector("sum", number), tuple(cluster), frozenset(cluster))
        for number, cluster in enumerate(clusters)
    ]
    return _scheme(
        "grouped", nodes, r, _all_but_one(clusters), drafts, sums if len(clusters) > 1 else []
    )


def combined(nodes: int, r: int) -> Scheme:
    """Clusters as ``grouped`` has them, but the k-th member needs just the k-th slice of the block
    it lacks: it adds up that slice of the cluster's sum and sends it to everybody: D·m/(m−1) for a
    cluster of m, n·D/r where all are full."""
    clusters = _clusters(nodes, -(-nodes // (r + 1)))

    def drafts(node: int) -> Iterator[_Draft]:
        number, cluster = _of(node, clusters)
        if len(cluster) > 1:
            yield 0, frozenset(cluster) - {node}, _inside(node, cluster, sliced=True)
        whole = Piece(Vector("sum", number, cluster.index(node), len(cluster)))
        yield 1, _others(nodes, [node]), (whole,)

    sums = [
        Sum(Vector("sum", number, part, len(cluster)), tuple(cluster), frozenset([node]))
        for number, cluster in enumerate(clusters)
        for part, node in enumerate(cluster)
    ]
    return _scheme("combined", nodes, r, _all_but_one(clusters), drafts, sums)


SCHEMES: dict[str, Callable[[int, int], Scheme]] = {
    "literal": literal,
    "replicated": replicated,
    "grouped": grouped,
    "combined": combined,
}


@lru_cache(maxsize=64)
def scheme(name: str, nodes: int, r: int) -> Scheme:
    """The scheme called ``name``. Raises InputError for an unknown one and for numbers that make
    none."""
    check(name, nodes, r)
    return SCHEMES[name](nodes, r)


def check(name: str, nodes: int, r: int) -> None:
    """Raise InputError for what makes no scheme."""
    if name not in SCHEMES:
        raise InputError(f"unknown scheme {name!r}", hint=f"Known: {', '.join(SCHEMES)}")
    if r < 1:
        raise InputError(f"redundancy r = {r}", hint="r is a whole number from 1 on")
    if not 2 <= nodes <= MOST_NODES:
        raise InputError(
            f"coded exchange of {nodes} workers", hint=f"It takes 2 to {MOST_NODES} of them"
        )
    if r >= nodes:
        raise InputError(
            f"redundancy r = {r} with {nodes} workers: each sample would be computed by every one "
            "of them",
            hint=f"r is at most {nodes - 1} here",
        )


def _scheme(
    name: str,
    nodes: int,
    r: int,
    holders: Sequence[frozenset[int]],
    drafts: Callable[[int], Iterator[_Draft]],
    sums: Sequence[Sum] = (),
) -> Scheme:
    packets = tuple(
        tuple(
            Packet(phase, number, node, destinations, pieces)
            for number, (phase, destinations, pieces) in enumerate(drafts(node))
        )
        for node in range(nodes)
    )
    return Scheme(name, nodes, r, tuple(holders), packets, tuple(sums))


def _coded(
    node: int, group: tuple[int, ...], numbers: dict[tuple[int, ...], int]
) -> tuple[Piece, ...]:
    """Return the part that ``node`` sends of each block that another member of ``group`` lacks."""
    pieces = []
    for other in group:
        if other != node:
            holders = tuple(member for member in group if member != other)
            block = Vector("block", numbers[holders])
            pieces.append(Piece(block, holders.index(node), len(holders)))
    return tuple(pieces)


def _inside(node: int, cluster: Sequence[int], *, sliced: bool = False) -> tuple[Piece, ...]:
    """The same where blocks have the numbers of those that lack them. ``sliced``: of their slices
    of it only."""
    pieces = []
    for rank, other in enumerate(cluster):
        if other != node:
            holders = [member for member in cluster if member != other]
            slice_of_it = (rank, len(cluster)) if sliced else (0, 1)
            block = Vector("block", other, *slice_of_it)
            pieces.append(Piece(block, holders.index(node), len(holders)))
    return tuple(pieces)


def _slice(vector: Vector, node: int, members: Sequence[int]) -> tuple[Piece, ...]:
    """Return the part that ``node`` sends of a vector that all ``members`` have."""
    return (Piece(vector, members.index(node), len(members)),)


def _all_but_one(clusters: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    """Return who computes each block: all of the cluster but one; a cluster of one has nobody else
    to."""
    return [
        frozenset(cluster) - {node} if len(cluster) > 1 else frozenset(cluster)
        for cluster in clusters
        for node in cluster
    ]


def _clusters(nodes: int, count: int) -> list[list[int]]:
    """Return clusters of neighbours, their sizes differing by at most one."""
    everybody = list(range(nodes))
    return [everybody[part(0, nodes, number, count)] for number in range(count)]


def _of(node: int, clusters: Sequence[Sequence[int]]) -> tuple[int, Sequence[int]]:
    return next((number, nodes) for number, nodes in enumerate(clusters) if node in nodes)


def _others(nodes: int, inside: Sequence[int]) -> frozenset[int]:
    return frozenset(range(nodes)) - frozenset(inside)


class CodedLoad(NamedTuple):
    """A node's step: packets that it sends, elements sent and received in sizes of a gradient,
    samples in own batches."""

    packets: int
    sent: Fraction
    received: Fraction
    work: Fraction


def loads(scheme: str, nodes: int, r: int) -> list[CodedLoad]:
    """Return the load of each node."""
    if scheme == "literal":
        packets = comb(nodes - 1, r)
        return [CodedLoad(packets, Fraction(packets, r), Fraction(packets), Fraction(r))] * nodes
    if scheme == "replicated":
        sizes = [len(group) for group in _clusters(nodes, -(-nodes // r))]
        others, work = Fraction(len(sizes) - 1), Fraction(nodes, len(sizes))
        return [CodedLoad(1, Fraction(1, m), others, work) for m in sizes for _ in range(m)]
    clusters = [len(cluster) for cluster in _clusters(nodes, -(-nodes // (r + 1)))]
    of = _grouped if scheme == "grouped" else _combined
    return [of(m, len(clusters)) for m in clusters for _ in range(m)]


def block_count(scheme: str, nodes: int, r: int) -> int:
    """Blocks that a mini-batch is cut into."""
    if scheme == "literal":
        return comb(nodes, r)
    return -(-nodes // r) if scheme == "replicated" else nodes


def total_load(scheme: str, nodes: int, r: int) -> Fraction:
    """Elements that all nodes together send in a step, in sizes of a gradient."""
    return sum((load.sent for load in loads(scheme, nodes, r)), Fraction(0))


def most_received(scheme: str, nodes: int, r: int) -> Fraction:
    """Elements that come to the node that receives most."""
    return max(load.received for load in loads(scheme, nodes, r))


def most_work(scheme: str, nodes: int, r: int) -> Fraction:
    """Samples that the busiest node computes, in batches of its own: r where groups are full."""
    return max(load.work for load in loads(scheme, nodes, r))


def _grouped(m: int, clusters: int) -> CodedLoad:
    inside = Fraction(1, m - 1) if m > 1 else Fraction(0)
    outside = Fraction(1, m) if clusters > 1 else Fraction(0)
    received = Fraction((m > 1) + clusters - 1)
    work = Fraction(max(1, m - 1))
    return CodedLoad((m > 1) + (clusters > 1), inside + outside, received, work)


def _combined(m: int, clusters: int) -> CodedLoad:
    """Return a node's load. What comes inside is as much as the node's own slice, which does not
    come."""
    inside = Fraction(1, m * (m - 1)) if m > 1 else Fraction(0)
    received = Fraction(clusters if m > 1 else clusters - 1)
    return CodedLoad(1 + (m > 1), inside + Fraction(1, m), received, Fraction(max(1, m - 1)))


class CodedGroups:
    """``workers``: peers' numbers, by rank. ``sets``: the groups in the order that all nodes name
    them, of peers' numbers.

    Senders are in the groups that they send to; so the members of an (r+1)-subset share one. A
    single destination needs none.
    """

    def __init__(self, schemes: Iterable[Scheme], workers: Sequence[int]) -> None:
        packets = (packet for plan in schemes for sent in plan.packets for packet in sent)
        groups = dict.fromkeys(_members(p) for p in packets if len(p.destinations) > 1)
        self._numbers = {members: number for number, members in enumerate(groups)}
        self.sets = [frozenset(workers[rank] for rank in ranks) for ranks in self._numbers]

    def of(self, packet: Packet) -> int | None:
        """Number of the group that ``packet`` goes to; None for one destination."""
        return self._numbers.get(_members(packet)) if len(packet.destinations) > 1 else None


def _members(packet: Packet) -> frozenset[int]:
    return packet.destinations | {packet.sender}
