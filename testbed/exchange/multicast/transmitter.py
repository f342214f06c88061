"""Datagrams of one sender: headers filled in, handed to the kernel, counted."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence

import numpy as np

from testbed.exchange.multicast.batch import Address, Sender
from testbed.exchange.multicast.counters import Amount, Counters
from testbed.exchange.multicast.outgoing import Outgoing
from testbed.exchange.multicast.packet import (
    HEADER_BYTES,
    LAYOUT,
    MAGIC,
    PAYLOAD,
    Flag,
    clock_us,
)
from testbed.exchange.multicast.sockets import Sockets


class Transmitter:
    """Everything that a multicaster sends goes through here. Not for several threads."""

    def __init__(self, own: int, run: int, sockets: Sockets, counters: Counters) -> None:
        self._own, self._run = own, run
        self._sockets, self._counters = sockets, counters
        self._sender = Sender()
        self._sender.headers["magic"], self._sender.headers["sender"] = MAGIC, own
        self._sender.headers["run"] = run

    def packets(
        self,
        message: Outgoing,
        indices: Sequence[int],
        flags: Sequence[int],
        to: Address,
        members: Iterable[int],
    ) -> tuple[int, int]:
        """Send these packets of a message, at most ``SLOTS``; the kernel may take only the first of them.

        Returns how many it took, and the time that is written on them.
        """
        now_us = clock_us(time.monotonic_ns())
        numbers = np.array(indices, np.int64)
        headers = self._sender.headers[: len(indices)]
        last = np.where(numbers == message.count - 1, int(Flag.LAST), 0)
        headers["flags"] = np.array(flags, np.int64) | last
        headers["group"], headers["message"] = message.group, message.number % 0x10000
        headers["index"], headers["stamp"] = numbers, now_us
        offsets = numbers * PAYLOAD
        lengths = np.minimum(PAYLOAD, len(message.stream) - offsets)
        taken = self._sender.send(self._sockets.out.fileno(), to, offsets, lengths, message.stream)
        if taken:
            repair = bool(flags[0] & Flag.REPAIR)
            kind = self._counters.repairs if repair else self._counters.data
            self._count(kind, taken, int(lengths[:taken].sum()) + HEADER_BYTES * taken, members)
        return taken, now_us

    def make_room(self, packets: int) -> None:
        """So many packets may be under way."""
        self._sockets.make_room(packets)

    def word(
        self,
        flags: int,
        place: tuple[int, int],
        index: int,
        stamp_us: int,
        body: bytes,
        to: Address,
        members: Iterable[int],
    ) -> None:
        """Send a question or a report; one that the kernel does not take is lost, as it may be on the way."""
        group, number = place
        header = LAYOUT.pack(
            MAGIC, flags, self._own, self._run, group, number % 0x10000, index, stamp_us
        )
        try:
            self._sockets.own.sendto(header + body, socket.MSG_DONTWAIT, to.plain)
        except OSError:
            return
        self._count(self._counters.feedback, 1, len(header) + len(body), members)

    def _count(self, kind: Amount, packets: int, octets: int, members: Iterable[int]) -> None:
        kind.add(packets, octets)
        for member in members:
            self._counters.to.setdefault(member, Amount()).add(packets, octets)
