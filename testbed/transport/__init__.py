"""Which endpoint suits a node: threads or one loop, by the sizes of its messages and the number of
its peers.

Measured on two processors, rounds of a server with its workers, a process each (``testbed bench
exchange``): rounds/s of one loop over those of a thread per peer. Where there is no figure the
crossing is a guess.

| peers | 1 KB | 100 KB | 5 MB | 44 MB |
| --- | --- | --- | --- | --- |
| 4 | | 1.58 | 0.96 | 0.90 |
| 16 | 1.57 | | | |

A loop saves the switches between threads, which small messages consist of; threads copy large ones
side by side.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from testbed.transport.epoll_endpoint import EpollEndpoint
from testbed.transport.threaded_endpoint import ThreadedEndpoint

EndpointKind = Literal["threads", "loop"]

ENDPOINTS: dict[EndpointKind, type[ThreadedEndpoint] | type[EpollEndpoint]] = {
    "threads": ThreadedEndpoint,
    "loop": EpollEndpoint,
}


class CrossoverPoint(NamedTuple):
    """Up to so many peers, one loop is faster for messages of fewer bytes than these."""

    peers: float
    bytes: float


CROSSOVER_TABLE = (CrossoverPoint(8, 1e6), CrossoverPoint(float("inf"), 4e6))


def endpoint_for(peers: int, message_bytes: float) -> EndpointKind:
    """The way for a node with so many peers, whose messages are about so long."""
    crossing = next(row for row in CROSSOVER_TABLE if peers <= row.peers)
    return "loop" if message_bytes < crossing.bytes else "threads"
