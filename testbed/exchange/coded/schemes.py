"""The four schemes, each as the table of its packets.

n nodes, redundancy r, gradients of D elements; a block's gradient has D elements however few samples the block has.
``literal`` is CSSGD as published (Li et al., algorithms 2–4); ``replicated`` does as much computation and codes nothing;
``grouped`` and ``combined`` code in clusters, the latter as Compressed CDC does (Li, Maddah-Ali, Avestimehr, ISIT 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations

from testbed.errors import InputError
from testbed.exchange.coded.plan import Packet, Piece, Scheme, Sum, Vector, part

MOST_NODES = 16
_Draft = tuple[int, frozenset[int], tuple[Piece, ...]]
"""Phase, destinations and pieces of a packet that has no number yet."""


def literal(nodes: int, r: int) -> Scheme:
    """C(n,r) blocks, one for every r-subset of nodes. For every (r+1)-subset S, each i in S sends the sum of the parts
    numbered rank(i) of the blocks S∖{k}, k ≠ i, to S∖{i}: n·C(n−1,r)/r·D in all."""
    subsets = list(combinations(range(nodes), r))
    numbers = {subset: number for number, subset in enumerate(subsets)}

    def drafts(node: int) -> Iterator[_Draft]:
        # everybody's n-th packet goes equally far round: at any time all links have as much to carry
        for steps in combinations(range(1, nodes), r):
            others = frozenset((node + step) % nodes for step in steps)
            yield 0, others, _coded(node, tuple(sorted(others | {node})), numbers)

    return _scheme("literal", nodes, r, [frozenset(subset) for subset in subsets], drafts)


def replicated(nodes: int, r: int) -> Scheme:
    """⌈n/r⌉ groups of at most r, a block for each. Its members each send a slice of it to all others: ⌈n/r⌉·D in all."""
    groups = _clusters(nodes, -(-nodes // r))

    def drafts(node: int) -> Iterator[_Draft]:
        number, group = _of(node, groups)
        yield 0, _others(nodes, group), _slice(Vector("block", number), node, group)

    return _scheme("replicated", nodes, r, [frozenset(group) for group in groups], drafts)


def grouped(nodes: int, r: int) -> Scheme:
    """⌈n/(r+1)⌉ clusters of at most r+1, a block for each node that lacks just it; coded inside as in ``literal``. Then
    members each send a slice of the cluster's sum to all others: (m/(m−1) + 1)·D for a cluster of m.

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
    found = sums if len(clusters) > 1 else []
    return _scheme("grouped", nodes, r, _lacking(clusters), drafts, found)


def combined(nodes: int, r: int) -> Scheme:
    """Clusters as ``grouped`` has them, but the k-th member needs just the k-th slice of the block it lacks: it adds up
    that slice of the cluster's sum and sends it to everybody: D·m/(m−1) for a cluster of m, n·D/r where all are full."""
    clusters = _clusters(nodes, -(-nodes // (r + 1)))

    def drafts(node: int) -> Iterator[_Draft]:
        number, cluster = _of(node, clusters)
        place, many = cluster.index(node), len(cluster)
        if many > 1:
            yield 0, frozenset(cluster) - {node}, _inside(node, cluster, sliced=True)
        whole = Piece(Vector("sum", number, place, many))
        yield 1, _others(nodes, [node]), (whole,)

    sums = [
        Sum(Vector("sum", number, place, len(cluster)), tuple(cluster), frozenset([node]))
        for number, cluster in enumerate(clusters)
        for place, node in enumerate(cluster)
    ]
    return _scheme("combined", nodes, r, _lacking(clusters), drafts, sums)


SCHEMES: dict[str, Callable[[int, int], Scheme]] = {
    "literal": literal, "replicated": replicated, "grouped": grouped, "combined": combined,
}  # fmt: skip


@lru_cache(maxsize=64)
def scheme(name: str, nodes: int, r: int) -> Scheme:
    """The scheme called ``name``. Raises InputError for an unknown one and for numbers that make none."""
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
            f"redundancy r = {r} with {nodes} workers: each sample would be computed by every one of them",
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
    """Of each block that another member of ``group`` lacks, the part that ``node`` sends."""
    pieces = []
    for lacking in group:
        if lacking != node:
            holders = tuple(member for member in group if member != lacking)
            block = Vector("block", numbers[holders])
            pieces.append(Piece(block, holders.index(node), len(holders)))
    return tuple(pieces)


def _inside(node: int, cluster: Sequence[int], *, sliced: bool = False) -> tuple[Piece, ...]:
    """The same where blocks have the numbers of those that lack them. ``sliced``: of their slices of it only."""
    pieces = []
    for place, lacking in enumerate(cluster):
        if lacking != node:
            rank = [member for member in cluster if member != lacking].index(node)
            index, of = (place, len(cluster)) if sliced else (0, 1)
            pieces.append(Piece(Vector("block", lacking, index, of), rank, len(cluster) - 1))
    return tuple(pieces)


def _slice(vector: Vector, node: int, members: Sequence[int]) -> tuple[Piece, ...]:
    """Of a vector that all ``members`` have, what ``node`` sends."""
    return (Piece(vector, members.index(node), len(members)),)


def _lacking(clusters: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    """By block, who computes it: all of the cluster but one; a cluster of one has nobody else to."""
    return [
        frozenset(cluster) - {node} if len(cluster) > 1 else frozenset(cluster)
        for cluster in clusters
        for node in cluster
    ]


def _clusters(nodes: int, many: int) -> list[list[int]]:
    """Of neighbours, their sizes differing by at most one."""
    everybody = list(range(nodes))
    return [everybody[part(0, nodes, number, many)] for number in range(many)]


def _of(node: int, clusters: Sequence[Sequence[int]]) -> tuple[int, Sequence[int]]:
    return next((number, nodes) for number, nodes in enumerate(clusters) if node in nodes)


def _others(nodes: int, inside: Sequence[int]) -> frozenset[int]:
    return frozenset(range(nodes)) - frozenset(inside)
