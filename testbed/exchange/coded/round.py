"""One step of a coded exchange at one node: gradients as 32-bit fixed point, packets out, packets
in, the total in the end.

    ±10  ↔  0x7FFFFFFF / 0x80000001        a step is 20 / (2³² − 2) = 4.66e-9

Rounded to nearest, ties to even; what is beyond ±10 is cut off there and counted. 0x80000000 stands
for no number. The paper bounds the sum over a block, so that larger blocks are cut off sooner. Here
sums are divided by the mean number of samples in a block, the same for all blocks: what is bounded
is about the gradient of a mean sample, whatever the redundancy.

offset size field
0      1    phase
1      1    redundancy r of the scheme
2      2    pieces that the sum is made of, p
4      4    number of the packet, among its sender's
8      8    elements that saturated in the sender's blocks of the step
16     8    T_calc of the sender's last step, seconds, IEEE 754 double; NaN: none yet
24     8    T_comm of it
32     4·p  CRC-32 of the vector that each piece is of, in the order of the packet's table
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, nan
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from testbed.errors import ExperimentError, WireError
from testbed.exchange.base import TransferTiming
from testbed.exchange.coded.schemes import Packet, Piece, Scheme, Sum, Vector, length
from testbed.node import Buffer, Message, Node
from testbed.records.events import CodedRecord

LIMIT = 10.0
MOST = 0x7FFFFFFF
POISON = -0x80000000
"""Value that NaN and infinity become: no sum of it means anything."""
_SCALE = MOST / LIMIT
_CHUNK = 1 << 15
"""Elements taken at a time: they stay in the cache from one pass to the next."""

Floats = NDArray[np.float32]
Fixed = NDArray[np.int32]
Sums = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QuantizerCounts:
    """Elements that could not be written as they were."""

    saturated: int
    poisoned: int


def quantize(gradient: Floats, into: Fixed, over: float = 1.0) -> QuantizerCounts:
    """Write ``gradient`` / ``over`` (float32 (size,)) to ``into`` (int32 (size,)).

    The caller refuses a gradient of which elements were poisoned: here nobody knows its parameters'
    names.
    """
    scratch = np.empty(min(_CHUNK, len(gradient)), np.float64)
    saturated = poisoned = 0
    for begin in range(0, len(gradient), _CHUNK):
        values = gradient[begin : begin + _CHUNK]
        scaled = np.multiply(values, _SCALE / over, out=scratch[: len(values)], dtype=np.float64)
        np.rint(scaled, out=scaled)
        # a comparison with NaN is false, so that one lands here too
        if not (scaled.min() >= -MOST and scaled.max() <= MOST):
            counted = _cut_off(values, scaled)
            saturated, poisoned = saturated + counted.saturated, poisoned + counted.poisoned
        into[begin : begin + _CHUNK] = scaled
    return QuantizerCounts(saturated, poisoned)


def mean(total: Sums, count: float) -> Floats:
    """The mean gradient, float32 (size,), of which ``total`` (int64 (size,)) is ``count`` times as
    much."""
    gradient = np.empty(len(total), np.float32)
    scale = LIMIT / MOST / count
    for begin in range(0, len(total), _CHUNK):
        gradient[begin : begin + _CHUNK] = total[begin : begin + _CHUNK] * scale
    return gradient


def narrowed(sums: Sums, bits: int) -> Fixed:
    """``sums`` (int64, of at most 2**bits blocks) divided by 2**bits, halves up: these fit into 32
    bits again."""
    if not bits:
        return sums.astype(np.int32)
    return ((sums + (1 << (bits - 1))) >> bits).astype(np.int32)


def _cut_off(values: Floats, scaled: NDArray[np.float64]) -> QuantizerCounts:
    """Bring ``scaled`` into the range, in place."""
    wrong = ~np.isfinite(values)
    beyond = (np.abs(scaled) > MOST) & ~wrong
    np.clip(scaled, -MOST, MOST, out=scaled)
    scaled[wrong] = POISON
    return QuantizerCounts(int(beyond.sum()), int(wrong.sum()))


class MissingVectors:
    """Vectors under way to node ``own``, ``size`` elements of a gradient, and the CRC-32 of each as
    the first who knew it had it. Nodes that compute a block must agree bit by bit."""

    def __init__(self, size: int, name: Callable[[int], str], own: int) -> None:
        self._size, self._name, self._own = size, name, own
        self._open: dict[Vector, tuple[Fixed, list[int]]] = {}
        self._claimed: dict[Vector, tuple[int, int]] = {}

    def claim(self, vector: Vector, crc: int, node: int) -> None:
        """``node`` has ``vector`` with that CRC-32. Raises ExperimentError where another has a
        different one."""
        first, other = self._claimed.setdefault(vector, (crc, node))
        if crc != first:
            raise ExperimentError(
                f"{vector} is not the same at {self._name(other)} and {self._name(node)} "
                f"(CRC-32 {first:08x} and {crc:08x}): decoding would give garbage. Nodes must "
                "compute a block's gradient bit by bit alike: the same versions, instructions and "
                "number of threads"
            )

    def target(self, piece: Piece) -> Fixed:
        """Where the piece's elements go."""
        if piece.vector not in self._open:
            size = length(piece.vector.columns(self._size))
            self._open[piece.vector] = np.empty(size, np.int32), []
        return self._open[piece.vector][0][piece.within(self._size)]

    def finish(self, piece: Piece, sender: int) -> Fixed | None:
        """The vector, if this was its last piece. Raises WireError for one that is not what was
        sent."""
        values, senders = self._open[piece.vector]
        senders.append(sender)
        if len(senders) < piece.of:
            return None
        del self._open[piece.vector]
        claimed, node = self._claimed[piece.vector]
        if (actual := crc32(values.data)) != claimed:
            raise WireError(
                f"{piece.vector}, as {self._name(self._own)} put it together from what "
                f"{', '.join(map(self._name, senders))} sent, is not what {self._name(node)} has "
                f"(CRC-32 {actual:08x} and {claimed:08x})"
            )
        return values


_LAYOUT = struct.Struct("<BBHIQdd")
FIXED_BYTES = _LAYOUT.size
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class CodedNote:
    """Report of a node on itself: saturations of this step, seconds of the last one."""

    saturated: int = 0
    t_calc_s: float = nan
    t_comm_s: float = nan


@dataclass(frozen=True, slots=True)
class CodedHeader:
    """See the table above."""

    phase: int
    r: int
    number: int
    note: CodedNote
    crcs: tuple[int, ...]

    def pack(self) -> bytes:
        """As on the wire: a multiple of four bytes."""
        note, pieces = self.note, len(self.crcs)
        fixed = _LAYOUT.pack(
            self.phase, self.r, pieces, self.number, note.saturated, note.t_calc_s, note.t_comm_s
        )
        return fixed + struct.pack(f"<{pieces}I", *self.crcs)

    @classmethod
    def unpack(cls, body: Buffer) -> tuple[CodedHeader, memoryview]:
        """The header and what follows it. Raises WireError for a body that is too short for one."""
        view = memoryview(body).cast("B")
        if len(view) < FIXED_BYTES:
            raise WireError(
                f"{len(view)} B are too few for the {FIXED_BYTES} B that a coded packet begins with"
            )
        phase, r, pieces, number, *note = _LAYOUT.unpack(view[:FIXED_BYTES])
        end = header_bytes(pieces)
        if len(view) < end:
            raise WireError(f"{len(view)} B are too few for a coded packet of {pieces} pieces")
        crcs = struct.unpack(f"<{pieces}I", view[FIXED_BYTES:end])
        return cls(phase, r, number, CodedNote(*note), crcs), view[end:]


def header_bytes(pieces: int) -> int:
    """Return the length of the header of a packet of so many pieces."""
    return FIXED_BYTES + _CRC_BYTES * pieces


_ELEMENT = np.dtype("<i4")


class Round:
    """``own``: int32 (blocks, size), in the order of ``scheme.blocks[node]``; it must stay as it
    is. ``size``: where parts are of matrices, what these are. ``name``: of a node, for errors."""

    def __init__(
        self,
        scheme: Scheme,
        node: int,
        own: Fixed,
        size: int | None = None,
        *,
        note: CodedNote | None = None,
        name: Callable[[int], str] = "node {}".format,
    ) -> None:
        self._scheme, self._node, self._own, self._name = scheme, node, own, name
        self._note = note or CodedNote()
        self._size = own.shape[1] if size is None else size
        self._rows = {block: row for row, block in enumerate(scheme.blocks[node])}
        self._vectors: dict[Vector, Fixed] = {}
        """Vectors that were put together or added up here, as long as they are needed."""
        self._crcs: dict[Vector, int] = {}
        self._under_way = MissingVectors(self._size, name, node)
        self._due = {(packet.sender, packet.number): packet for packet in scheme.incoming[node]}
        self._waiting = [0] * scheme.phases
        for packet in self._due.values():
            self._waiting[packet.phase] += 1
        self._total = np.zeros(self._size, np.int64)
        for block in () if scheme.sums else self._rows:
            self._contribute(Vector("block", block))
        self._to_add = [sum_ for sum_ in scheme.sums if node in sum_.holders]

    @property
    def phases(self) -> int:
        """Return the number of phases of the scheme."""
        return self._scheme.phases

    def packets(self, phase: int) -> Iterator[tuple[Packet, memoryview]]:
        """Yield the packets that this node sends in ``phase``, each with its body; phases before
        must be complete."""
        if phase and not self.complete(phase - 1):
            raise RuntimeError(f"phase {phase} before all packets of the phase before have come")
        if phase:
            self._add_up()
        for packet in self._scheme.packets[self._node]:
            if packet.phase == phase:
                yield packet, self._body(packet)

    def take(self, sender: int, body: Buffer) -> CodedNote:
        """Take in a packet of ``sender``; returns what it tells of itself.

        Raises WireError for one that has no place here, ExperimentError naming the block that two
        nodes have computed differently.
        """
        header, rest = CodedHeader.unpack(body)
        packet = self._expected(sender, header)
        if len(rest) != _ELEMENT.itemsize * packet.elements(self._size):
            raise WireError(
                f"packet {packet.number} of {self._name(sender)} has {len(rest)} B of elements, "
                f"not {_ELEMENT.itemsize * packet.elements(self._size)}"
            )
        for piece, crc in zip(packet.pieces, header.crcs, strict=True):
            if self._knows(piece.vector):
                self._under_way.claim(piece.vector, self._crc(piece.vector), self._node)
            self._under_way.claim(piece.vector, crc, sender)
        self._decode(packet, np.frombuffer(rest, _ELEMENT))
        del self._due[sender, packet.number]
        self._waiting[packet.phase] -= 1
        return header.note

    def complete(self, phase: int) -> bool:
        """Return whether all packets of ``phase`` and of those before have come."""
        return not any(self._waiting[: phase + 1])

    def missing(self) -> set[int]:
        """Nodes of which packets have not come."""
        return {sender for sender, _ in self._due}

    def total(self) -> Sums:
        """The sum over all samples of the mini-batch, int64 (size,): the same on every node, bit by
        bit."""
        if not self.complete(self._scheme.phases - 1):
            raise RuntimeError("the total before all packets have come")
        self._add_up()
        return self._total

    def _expected(self, sender: int, header: CodedHeader) -> Packet:
        packet = self._due.get((sender, header.number))
        if packet is None or header.r != self._scheme.r or header.phase != packet.phase:
            raise WireError(
                f"{self._name(sender)} sent packet {header.number} of phase {header.phase} "
                f"with r = {header.r}, which {self._name(self._node)} does not wait for "
                f"(r = {self._scheme.r})"
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
        header = CodedHeader(packet.phase, self._scheme.r, packet.number, self._note, crcs).pack()
        body = bytearray(len(header) + _ELEMENT.itemsize * packet.elements(self._size))
        body[: len(header)] = header
        sums = np.frombuffer(body, _ELEMENT, offset=header_bytes(len(crcs)))
        for piece in packet.pieces:
            values = self._values(piece)
            sums[: len(values)] += values
        return memoryview(body)

    def _decode(self, packet: Packet, sums: Fixed) -> None:
        """Subtract what is known; what remains belongs to the vector that is not."""
        (unknown,) = (piece for piece in packet.pieces if not self._knows(piece.vector))
        target = self._under_way.target(unknown)
        target[:] = sums[: len(target)]
        for piece in packet.pieces:
            if piece is not unknown:
                known = self._values(piece)[: len(target)]
                target[: len(known)] -= known
        if (vector := self._under_way.finish(unknown, packet.sender)) is not None:
            self._vectors[unknown.vector] = vector
            if unknown.vector in self._scheme.terms:
                self._contribute(unknown.vector)
                del self._vectors[unknown.vector]

    def _add_up(self) -> None:
        """Make the sums of this node's cluster, once."""
        while self._to_add:
            to_add = self._to_add.pop()
            self._vectors[to_add.vector] = self._sum(to_add)
            self._contribute(to_add.vector)

    def _sum(self, to_add: Sum) -> Fixed:
        wide = np.zeros(length(to_add.vector.columns(self._size)), np.int64)
        for block in to_add.blocks:
            wide += self._vector(to_add.vector._replace(kind="block", number=block))
        return narrowed(wide, to_add.bits)

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
        return self._vectors[vector]

    def _values(self, piece: Piece) -> Fixed:
        return self._vector(piece.vector)[piece.within(self._size)]


class PacketLog:
    """Log of the packets of ``step``, whose first packet was sent at ``start_s``."""

    def __init__(self, node: Node, step: int, start_s: float, own: CodedNote) -> None:
        self._node, self.step, self._start_s, self._own = node, step, start_s, own
        self._packets, self._bytes_up = 0, 0
        self._first_sent_s = self._sent_s = start_s
        self._first_s = inf
        self._arrived_s = self._last_s = start_s
        self._began_s: dict[int, float] = {}
        self._notes: dict[int, CodedNote] = {}
        self._bytes_down: Counter[int] = Counter()

    def sent(self, frame_bytes: int) -> None:
        """A packet has just been handed over."""
        self._packets += 1
        self._bytes_up += frame_bytes
        self._sent_s = self._node.now()
        if self._first_s == inf:
            self._first_sent_s = self._sent_s

    def received(self, message: Message, note: CodedNote) -> None:
        """A packet has come and been decoded."""
        sender = message.sender
        self._notes[sender] = note
        self._began_s[sender] = min(message.sent_s, self._began_s.get(sender, message.sent_s))
        self._bytes_down[sender] += self._node.endpoint.frame_bytes(message)
        self._first_s = min(self._first_s, message.first_s)
        self._arrived_s = max(self._arrived_s, message.arrived_s)
        self._last_s = max(self._last_s, message.last_s)

    def note_of(self, sender: int) -> CodedNote:
        """Return the note of one; one's own for who was not heard of."""
        return self._notes.get(sender, self._own)

    @property
    def notes(self) -> list[CodedNote]:
        """Return the notes of all nodes that were heard of, and one's own."""
        return [self._own, *self._notes.values()]

    @property
    def t_comm_s(self) -> float:
        """From when the last of those one hears of began to send, until all had come and been
        sent."""
        began_s = max([self._start_s, *self._began_s.values()])
        return max(0.0, max(self._last_s, self._sent_s) - began_s)

    def travel(self) -> TransferTiming:
        """From the first packet's start to the last one's end; phases after the first are part of
        receiving."""
        sent_s = self._first_sent_s
        first_s = sent_s if self._first_s == inf else max(sent_s, self._first_s)
        return TransferTiming(
            start_s=self._start_s,
            sent_s=sent_s,
            first_s=first_s,
            arrived_s=max(self._arrived_s, self._sent_s),
            last_s=max(self._last_s, self._sent_s),
            bytes_up=self._bytes_up,
            bytes_down=self._bytes_down.total(),
        )

    def record(self, node: str, r: int, names: Mapping[int, str]) -> CodedRecord:
        """As it stands in the records."""
        return CodedRecord(
            node=node,
            step=self.step,
            r=r,
            packets=self._packets,
            bytes_sent=self._bytes_up,
            received={names[sender]: size for sender, size in sorted(self._bytes_down.items())},
            saturated=self._own.saturated,
            t_calc_s=self._own.t_calc_s,
            t_comm_s=self.t_comm_s,
        )
