"""How much a scheme sends and computes, in closed form; see the schemes for where the formulas come from."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import NamedTuple

from testbed.exchange.coded.plan import part

ELEMENT_BYTES = 4


class Load(NamedTuple):
    """A node's step: packets that it sends, elements sent and received in sizes of a gradient, samples in own batches."""

    packets: int
    sent: Fraction
    received: Fraction
    work: Fraction

    def bytes(self, size: int) -> Fraction:
        """Bytes of the elements sent, for gradients of ``size`` elements; parts are rounded up to whole ones."""
        return self.sent * size * ELEMENT_BYTES


def loads(scheme: str, nodes: int, r: int) -> list[Load]:
    """By node."""
    if scheme == "literal":
        many = comb(nodes - 1, r)
        return [Load(many, Fraction(many, r), Fraction(many), Fraction(r))] * nodes
    if scheme == "replicated":
        sizes = _sizes(nodes, -(-nodes // r))
        others, work = Fraction(len(sizes) - 1), Fraction(nodes, len(sizes))
        return [Load(1, Fraction(1, m), others, work) for m in sizes for _ in range(m)]
    clusters = _sizes(nodes, -(-nodes // (r + 1)))
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


def _grouped(m: int, clusters: int) -> Load:
    inside = Fraction(1, m - 1) if m > 1 else Fraction(0)
    outside = Fraction(1, m) if clusters > 1 else Fraction(0)
    received = Fraction((m > 1) + clusters - 1)
    work = Fraction(max(1, m - 1))
    return Load((m > 1) + (clusters > 1), inside + outside, received, work)


def _combined(m: int, clusters: int) -> Load:
    """What comes inside is as much as the slice of one's own, which does not come."""
    inside = Fraction(1, m * (m - 1)) if m > 1 else Fraction(0)
    received = Fraction(clusters if m > 1 else clusters - 1)
    return Load(1 + (m > 1), inside + Fraction(1, m), received, Fraction(max(1, m - 1)))


def _sizes(nodes: int, many: int) -> list[int]:
    cuts = (part(0, nodes, number, many) for number in range(many))
    return [cut.stop - cut.start for cut in cuts]
