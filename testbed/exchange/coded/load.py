"""How much a scheme sends and computes, in closed form; see the schemes for where the formulas come from."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import NamedTuple

from testbed.exchange.coded.plan import part

ELEMENT_BYTES = 4


class Load(NamedTuple):
    """What a node sends in a step: packets, and elements in sizes of a gradient. ``work``: samples in own shares."""

    packets: int
    share: Fraction
    work: Fraction

    def bytes(self, size: int) -> Fraction:
        """Bytes of elements for gradients of ``size`` elements; a packet's parts are rounded up to whole ones."""
        return self.share * size * ELEMENT_BYTES


def loads(scheme: str, nodes: int, r: int) -> list[Load]:
    """By node."""
    if scheme == "literal":
        many = comb(nodes - 1, r)
        return [Load(many, Fraction(many, r), Fraction(r))] * nodes
    if scheme == "replicated":
        groups = -(-nodes // r)
        members = _sizes(nodes, groups)
        return [Load(1, Fraction(1, m), Fraction(nodes, groups)) for m in members for _ in range(m)]
    clusters = _sizes(nodes, -(-nodes // (r + 1)))
    of = _grouped if scheme == "grouped" else _combined
    return [of(m, alone=len(clusters) == 1) for m in clusters for _ in range(m)]


def block_count(scheme: str, nodes: int, r: int) -> int:
    """Blocks that a mini-batch is cut into."""
    if scheme == "literal":
        return comb(nodes, r)
    return -(-nodes // r) if scheme == "replicated" else nodes


def total_load(scheme: str, nodes: int, r: int) -> Fraction:
    """Elements that all nodes together send in a step, in sizes of a gradient."""
    return sum((load.share for load in loads(scheme, nodes, r)), Fraction(0))


def most_work(scheme: str, nodes: int, r: int) -> Fraction:
    """Samples that the busiest node computes, in shares of one without redundancy: r where groups are full."""
    return max(load.work for load in loads(scheme, nodes, r))


def _grouped(m: int, *, alone: bool) -> Load:
    inside = Fraction(1, m - 1) if m > 1 else Fraction(0)
    outside = Fraction(0) if alone else Fraction(1, m)
    return Load((m > 1) + (not alone), inside + outside, Fraction(max(1, m - 1)))


def _combined(m: int, *, alone: bool) -> Load:
    del alone  # members need each other's slices too
    inside = Fraction(1, m * (m - 1)) if m > 1 else Fraction(0)
    return Load(1 + (m > 1), inside + Fraction(1, m), Fraction(max(1, m - 1)))


def _sizes(nodes: int, many: int) -> list[int]:
    cuts = (part(0, nodes, number, many) for number in range(many))
    return [cut.stop - cut.start for cut in cuts]
