"""One node's part in an exchange that is measured, and what it is told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

SERVER = 0
"""The server's number; the other nodes have 1 and the following."""


@dataclass(frozen=True, slots=True)
class Task:
    """Rounds of one exchange, as a node is told of them.

    ``nodes``: those that have gradients; ``bytes``: of a gradient, float32; ``address``: of every node by number, the
    server's among them; ``device``: of the network, in every node's namespace.
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

    def to_json(self) -> dict[str, Any]:
        """As it travels; ``from_json`` reads it back equal."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        """Read what ``to_json`` wrote."""
        addresses = {int(number): where for number, where in data["addresses"].items()}
        return cls(**{**data, "addresses": addresses})


class Part(Protocol):
    """Ready for rounds once it is made: connections exist."""

    def round(self, step: int) -> None:
        """One round, counted from 1: every node sends its gradient, and has the sum (or all of them) at the end."""
        ...

    def close(self) -> None:
        """End it, together with the others."""
        ...


def gradient(task: Task) -> Vector:
    """A node's own: its number, everywhere."""
    return np.full(task.bytes // 4, task.own, dtype=np.float32)


def add(vectors: Sequence[Vector], total: Vector) -> Vector:
    """The sum in order of rank, into ``total``."""
    total[:] = vectors[0]
    for vector in vectors[1:]:
        np.add(total, vector, out=total)
    return total
