"""The vectors that a node lacks, put together piece by piece, and what is claimed of all vectors."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np

from testbed.errors import ExperimentError, WireError
from testbed.exchange.coded.plan import Piece, Vector, length
from testbed.exchange.coded.quantize import Fixed


class Claims:
    """CRC-32 of every vector, as the first who knew it had it. Nodes that compute a block must agree bit by bit."""

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._claimed: dict[Vector, tuple[int, int]] = {}

    def hear(self, vector: Vector, crc: int, node: int) -> None:
        """``node`` has ``vector`` with that CRC-32. Raises ExperimentError where another has a different one."""
        first, other = self._claimed.setdefault(vector, (crc, node))
        if crc != first:
            raise ExperimentError(
                f"{vector} is not the same at {self._name(other)} and {self._name(node)} "
                f"(CRC-32 {first:08x} and {crc:08x}): decoding would give garbage. Nodes must compute a block's "
                "gradient bit by bit alike: the same versions, instructions and number of threads"
            )

    def of(self, vector: Vector) -> tuple[int, int]:
        """The CRC-32, and whose it is."""
        return self._claimed[vector]


class Assembly:
    """Vectors under way."""

    def __init__(self, size: int, claims: Claims, name: Callable[[int], str], own: int) -> None:
        self._size, self._claims, self._name, self._own = size, claims, name, own
        self._open: dict[Vector, tuple[Fixed, list[int]]] = {}

    def place(self, piece: Piece) -> Fixed:
        """Where the piece's elements go."""
        if piece.vector not in self._open:
            many = length(piece.vector.columns(self._size))
            self._open[piece.vector] = np.empty(many, np.int32), []
        return self._open[piece.vector][0][piece.within(self._size)]

    def finish(self, piece: Piece, sender: int) -> Fixed | None:
        """The vector, if this was its last piece. Raises WireError for one that is not what was sent."""
        values, senders = self._open[piece.vector]
        senders.append(sender)
        if len(senders) < piece.of:
            return None
        del self._open[piece.vector]
        claimed, node = self._claims.of(piece.vector)
        if (found := crc32(values.data)) != claimed:
            raise WireError(
                f"{piece.vector}, as {self._name(self._own)} put it together from what "
                f"{', '.join(map(self._name, senders))} sent, is not what {self._name(node)} has "
                f"(CRC-32 {found:08x} and {claimed:08x})"
            )
        return values
