"""What a scheme consists of: who computes which blocks, and every packet that anybody sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple


class Vector(NamedTuple):
    """Columns of a block's gradient, or of a cluster's sum: what one node knows and another lacks."""

    kind: Literal["block", "sum"]
    number: int
    """Of the block, or of the cluster."""
    place: int = 0
    of: int = 1
    """Which of so many parts of all columns; 0 of 1 is all of them."""

    def columns(self, size: int) -> slice:
        """Where it is in a gradient of ``size`` elements."""
        return part(0, size, self.place, self.of)

    def __str__(self) -> str:
        name = (
            f"block {self.number}" if self.kind == "block" else f"the sum of cluster {self.number}"
        )
        return name if self.of == 1 else f"part {self.place} of {name}"


class Piece(NamedTuple):
    """Part ``place`` of ``of`` of a vector: what a packet holds of it."""

    vector: Vector
    place: int = 0
    of: int = 1

    def columns(self, size: int) -> slice:
        """Where it is in a gradient of ``size`` elements."""
        whole = self.vector.columns(size)
        return part(whole.start, whole.stop, self.place, self.of)

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
        """How many it has: as many as its longest piece. Shorter ones count as filled up with zeros."""
        return max(length(piece.columns(size)) for piece in self.pieces)


class Sum(NamedTuple):
    """A vector that ``holders`` make of ``blocks``, all of which they have after the first phase."""

    vector: Vector
    blocks: tuple[int, ...]
    holders: frozenset[int]

    @property
    def bits(self) -> int:
        """What it is shifted right by, so that it is 32 bits wide again: ⌈log₂ blocks⌉."""
        return (len(self.blocks) - 1).bit_length()


@dataclass(frozen=True)
class Scheme:
    """A way to share out a mini-batch among ``nodes`` (by rank), each sample to about ``r`` of them.

    ``holders``: by block, who computes it. ``packets``: by sender, in the order of sending. ``sums``: where blocks are
    added up before they leave their cluster; without any, the total is that of all blocks.
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
        """By node, the blocks that it computes, ascending."""
        return tuple(
            tuple(block for block, nodes in enumerate(self.holders) if node in nodes)
            for node in range(self.nodes)
        )

    @cached_property
    def incoming(self) -> tuple[tuple[Packet, ...], ...]:
        """By node, the packets that come to it."""
        found: tuple[list[Packet], ...] = tuple([] for _ in range(self.nodes))
        for sent in self.packets:
            for packet in sent:
                for node in packet.destinations:
                    found[node].append(packet)
        return tuple(map(tuple, found))

    @cached_property
    def terms(self) -> Mapping[Vector, int]:
        """What adds up to the total, each with the bits that it is shifted left by."""
        if self.sums:
            return {one.vector: one.bits for one in self.sums}
        return {Vector("block", number): 0 for number in range(len(self.holders))}

    def samples(self, block: int, count: int) -> slice:
        """Where ``block`` is in a mini-batch of ``count`` samples; blocks differ by at most one sample."""
        return part(0, count, block, len(self.holders))

    def work(self, node: int, count: int) -> int:
        """Samples of a mini-batch of ``count`` that ``node`` computes."""
        return sum(length(self.samples(block, count)) for block in self.blocks[node])


def part(begin: int, end: int, index: int, of: int) -> slice:
    """The ``index``-th of ``of`` parts of what lies from ``begin`` to ``end``; they differ by at most one."""
    many = end - begin
    return slice(begin + many * index // of, begin + many * (index + 1) // of)


def length(columns: slice) -> int:
    """How many there are in it."""
    return int(columns.stop - columns.start)
