"""One step at one node: packets out, packets in, the total in the end. Whatever order packets come in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from zlib import crc32

import numpy as np

from testbed.errors import WireError
from testbed.exchange.coded.assembly import Assembly, Claims
from testbed.exchange.coded.header import Header, Note, header_bytes
from testbed.exchange.coded.plan import Packet, Piece, Scheme, Sum, Vector, length
from testbed.exchange.coded.quantize import Fixed, Sums, narrowed
from testbed.node import Buffer

_ELEMENT = np.dtype("<i4")


class Round:
    """``own``: int32 (blocks, size), in the order of ``scheme.blocks[node]``; it must stay as it is. ``name``: of a node,
    for errors."""

    def __init__(
        self,
        scheme: Scheme,
        node: int,
        own: Fixed,
        *,
        note: Note | None = None,
        name: Callable[[int], str] = "node {}".format,
    ) -> None:
        self._scheme, self._node, self._own, self._name = scheme, node, own, name
        self._note = note or Note()
        self._size = own.shape[1]
        self._rows = {block: row for row, block in enumerate(scheme.blocks[node])}
        self._made: dict[Vector, Fixed] = {}
        """Vectors that were put together or added up here, as long as they are needed."""
        self._crcs: dict[Vector, int] = {}
        self._claims = Claims(name)
        self._assembly = Assembly(self._size, self._claims, name, node)
        self._due = {(packet.sender, packet.number): packet for packet in scheme.incoming[node]}
        self._waiting = [0] * scheme.phases
        for packet in self._due.values():
            self._waiting[packet.phase] += 1
        self._total = np.zeros(self._size, np.int64)
        for block in () if scheme.sums else self._rows:
            self._contribute(Vector("block", block))
        self._to_add = [one for one in scheme.sums if node in one.holders]

    @property
    def phases(self) -> int:
        """Of the scheme."""
        return self._scheme.phases

    def packets(self, phase: int) -> Iterator[tuple[Packet, memoryview]]:
        """What this node sends in ``phase``, each with its body; all phases before must be complete."""
        if phase and not self.complete(phase - 1):
            raise RuntimeError(f"phase {phase} before all packets of the phase before have come")
        if phase:
            self._add_up()
        for packet in self._scheme.packets[self._node]:
            if packet.phase == phase:
                yield packet, self._body(packet)

    def take(self, sender: int, body: Buffer) -> Note:
        """Take in a packet of ``sender``; returns what it tells of itself.

        Raises WireError for one that has no place here, ExperimentError naming the block that two nodes have computed
        differently.
        """
        header, rest = Header.unpack(body)
        packet = self._expected(sender, header)
        if len(rest) != _ELEMENT.itemsize * packet.elements(self._size):
            raise WireError(
                f"packet {packet.number} of {self._name(sender)} has {len(rest)} B of elements, "
                f"not {_ELEMENT.itemsize * packet.elements(self._size)}"
            )
        for piece, crc in zip(packet.pieces, header.crcs, strict=True):
            if self._knows(piece.vector):
                self._claims.hear(piece.vector, self._crc(piece.vector), self._node)
            self._claims.hear(piece.vector, crc, sender)
        self._decode(packet, np.frombuffer(rest, _ELEMENT))
        del self._due[sender, packet.number]
        self._waiting[packet.phase] -= 1
        return header.note

    def complete(self, phase: int) -> bool:
        """Whether all packets of ``phase`` and of those before have come."""
        return not any(self._waiting[: phase + 1])

    def missing(self) -> set[int]:
        """Nodes of which packets have not come."""
        return {sender for sender, _ in self._due}

    def total(self) -> Sums:
        """The sum over all samples of the mini-batch, int64 (size,): the same on every node, bit by bit."""
        if not self.complete(self._scheme.phases - 1):
            raise RuntimeError("the total before all packets have come")
        self._add_up()
        return self._total

    def _expected(self, sender: int, header: Header) -> Packet:
        packet = self._due.get((sender, header.number))
        if packet is None or header.r != self._scheme.r or header.phase != packet.phase:
            raise WireError(
                f"{self._name(sender)} sent packet {header.number} of phase {header.phase} with r = {header.r}, "
                f"which {self._name(self._node)} does not wait for (r = {self._scheme.r})"
            )
        if len(header.crcs) != len(packet.pieces):
            raise WireError(
                f"packet {header.number} of {self._name(sender)} has {len(header.crcs)} pieces, "
                f"not {len(packet.pieces)}"
            )
        return packet

    def _body(self, packet: Packet) -> memoryview:
        """Header, then the wrap-around sum of its pieces."""
        crcs = tuple(self._crc(piece.vector) for piece in packet.pieces)
        header = Header(packet.phase, self._scheme.r, packet.number, self._note, crcs).pack()
        body = bytearray(len(header) + _ELEMENT.itemsize * packet.elements(self._size))
        body[: len(header)] = header
        sums = np.frombuffer(body, _ELEMENT, offset=header_bytes(len(crcs)))
        for piece in packet.pieces:
            values = self._values(piece)
            sums[: len(values)] += values
        return memoryview(body)

    def _decode(self, packet: Packet, sums: Fixed) -> None:
        """Subtract what is known; what remains belongs to the vector that is not."""
        (lacking,) = (piece for piece in packet.pieces if not self._knows(piece.vector))
        place = self._assembly.place(lacking)
        place[:] = sums[: len(place)]
        for piece in packet.pieces:
            if piece is not lacking:
                known = self._values(piece)[: len(place)]
                place[: len(known)] -= known
        if (vector := self._assembly.finish(lacking, packet.sender)) is not None:
            self._made[lacking.vector] = vector
            if lacking.vector in self._scheme.terms:
                self._contribute(lacking.vector)
                del self._made[lacking.vector]

    def _add_up(self) -> None:
        """Make the sums of this node's cluster, once."""
        while self._to_add:
            one = self._to_add.pop()
            self._made[one.vector] = self._sum(one)
            self._contribute(one.vector)

    def _sum(self, one: Sum) -> Fixed:
        wide = np.zeros(length(one.vector.columns(self._size)), np.int64)
        for block in one.blocks:
            wide += self._vector(one.vector._replace(kind="block", number=block))
        return narrowed(wide, one.bits)

    def _contribute(self, vector: Vector) -> None:
        columns = self._total[vector.columns(self._size)]
        values, bits = self._vector(vector), self._scheme.terms[vector]
        columns += np.left_shift(values, bits, dtype=np.int64) if bits else values

    def _knows(self, vector: Vector) -> bool:
        """From the beginning, not because it has come."""
        return vector.kind == "block" and vector.number in self._rows

    def _crc(self, vector: Vector) -> int:
        if vector not in self._crcs:
            self._crcs[vector] = crc32(np.ascontiguousarray(self._vector(vector)).data)
        return self._crcs[vector]

    def _vector(self, vector: Vector) -> Fixed:
        if vector.kind == "block" and vector.number in self._rows:
            return self._own[self._rows[vector.number], vector.columns(self._size)]
        return self._made[vector]

    def _values(self, piece: Piece) -> Fixed:
        return self._vector(piece.vector)[piece.within(self._size)]
