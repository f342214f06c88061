"""A step of a coded exchange among nodes in one process, their packets in any order."""

from __future__ import annotations

from random import Random

import numpy as np
from numpy.typing import NDArray

from testbed.exchange.coded.round import Round
from testbed.exchange.coded.schemes import Packet, Scheme

MOST = 0x7FFFFFFF
ALL = [
    (name, nodes, r)
    for name in ("literal", "replicated", "grouped", "combined")
    for nodes in range(2, 9)
    for r in range(1, min(nodes, 5))
]
Fixed = NDArray[np.int32]


def blocks(scheme: Scheme, size: int, seed: int) -> Fixed:
    """Gradients of all blocks: any 32-bit numbers, many of them saturated."""
    generator = np.random.default_rng(seed)
    found = generator.integers(-MOST, MOST, (len(scheme.holders), size), np.int32, endpoint=True)
    return np.where(generator.random(found.shape) < 0.3, np.sign(found) * MOST, found)


def rounds(scheme: Scheme, gradients: Fixed) -> list[Round]:
    """One for each node, with the blocks that it computes."""
    return [
        Round(scheme, node, gradients[list(scheme.blocks[node])]) for node in range(scheme.nodes)
    ]


def exchanged(scheme: Scheme, nodes: list[Round], seed: int = 0) -> list[tuple[Packet, bytes]]:
    """Carry out the step; returns every packet that was sent. Packets come in an order of chance, and those of a
    phase may come before the phase before is complete."""
    random, sent = Random(seed), list[tuple[Packet, bytes]]()
    under_way: list[tuple[int, Packet, bytes]] = []
    next_phase = [0] * scheme.nodes

    def send() -> None:
        for number, node in enumerate(nodes):
            while next_phase[number] < scheme.phases and (
                not next_phase[number] or node.complete(next_phase[number] - 1)
            ):
                for packet, body in node.packets(next_phase[number]):
                    sent.append((packet, bytes(body)))
                    under_way.extend((to, packet, bytes(body)) for to in packet.destinations)
                next_phase[number] += 1

    send()
    while under_way:
        to, packet, body = under_way.pop(random.randrange(len(under_way)))
        nodes[to].take(packet.sender, body)
        send()
    return sent


def direct(scheme: Scheme, gradients: Fixed) -> NDArray[np.int64]:
    """The total by its definition: of blocks, or of clusters' sums divided with halves up and multiplied again."""
    wide = gradients.astype(np.int64)
    if not scheme.sums:
        return wide.sum(0)
    total = np.zeros(gradients.shape[1], np.int64)
    for cluster in {one.blocks for one in scheme.sums}:
        divisor = 2 ** int(np.ceil(np.log2(len(cluster))))
        total += (2 * wide[list(cluster)].sum(0) + divisor) // (2 * divisor) * divisor
    return total
