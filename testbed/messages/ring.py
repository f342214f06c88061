"""A ring all-reduce as single messages.

What is summed up is cut into as many segments as there are nodes. In each of 2(n - 1) hops every node sends one to the
next and receives another from the one before it (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters
of workstations", 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from testbed.messages.node_log import NodeLog


@dataclass(frozen=True, slots=True)
class Hop:
    """What a node does in one: units (elements, or bytes) of the segments that it sends and receives."""

    number: int
    next: str
    before: str
    sent: int
    received: int


def hops(place: int, nodes: Sequence[str], size: int) -> Iterator[Hop]:
    """All hops of the node at ``place``; none if it is alone. The first segments take what is over."""
    many = len(nodes)
    each, over = divmod(size, many)
    segments = [each + (number < over) for number in range(many)]
    for number in range(2 * (many - 1)):
        sent, received = segments[(place - number) % many], segments[(place - number - 1) % many]
        yield Hop(number, nodes[(place + 1) % many], nodes[place - 1], sent, received)


def pass_round(
    log: NodeLog,
    turns: Iterator[Hop],
    bytes_of: Callable[[int], int],
    after: int,
    step: int | None,
    first_tag: int = 0,
) -> list[int]:
    """Add a node's hops to ``log``; returns what whoever goes on waits for.

    ``bytes_of``: what a message with so many units takes. What was received is sent in the next hop.
    """
    came, sent = after, after
    for hop in turns:
        tag, out, back = first_tag + hop.number, bytes_of(hop.sent), bytes_of(hop.received)
        sent = log.message("send", hop.next, out, tag, sorted({came, sent}), step)
        came = log.message("receive", hop.before, back, tag, [], step)
    return sorted({came, sent})
