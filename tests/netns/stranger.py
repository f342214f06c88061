"""Somebody on the data network who has no part in a run, with what real peers have sent at hand."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress

from testbed.links.network.namespaces import inside
from testbed.node import Kind
from testbed.topology import DATA_PORT, MULTICAST_PORT, Interface
from testbed.transport.frame import HEADER_BYTES, MAGIC, FrameHeader
from testbed.transport.multicast.packet import DATAGRAM

_SO_RCVBUFFORCE = 33
_ETHERNET_BYTES, _LOOK_S = 14, 0.5
_RUN_AT, _DATAGRAM = 4, -1
"""Where a datagram says which run it is of; the place of a kept one beside kinds of frames."""


class Listening:
    """Keeps the first frame of each kind that an interface passes, or the first packet of it."""

    def __init__(self, nic: Interface) -> None:
        with inside(nic.netns):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.bind((nic.name, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 26)
        self._socket.settimeout(_LOOK_S)
        self._heard: dict[int, bytes] = {}
        self._ended = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def end(self) -> dict[int, bytes]:
        """By kind."""
        self._ended = True
        self._thread.join(10 * _LOOK_S)
        self._socket.close()
        return self._heard

    def _listen(self) -> None:
        while (packet := self._next()) is not None:
            protocol, payload = _payload(packet)
            framed = payload.startswith(MAGIC) and len(payload) >= HEADER_BYTES
            if protocol == socket.IPPROTO_TCP and framed:
                self._heard.setdefault(payload[5], payload)
            elif protocol == socket.IPPROTO_UDP and len(payload) == DATAGRAM:
                self._heard.setdefault(_DATAGRAM, payload)

    def _next(self) -> bytes | None:
        """A packet; None once the end was asked for and all that came before it has been read."""
        while True:
            try:
                return self._socket.recv(1 << 16)
            except TimeoutError:
                if self._ended:
                    return None
            except OSError:  # closed, since packets kept coming
                return None


def datagrams(heard: dict[int, bytes]) -> list[bytes]:
    """What a stranger sends to multicast's port; the last is a peer's, which has come already."""
    genuine = heard[_DATAGRAM]
    other_run = genuine[:_RUN_AT] + bytes([genuine[_RUN_AT] ^ 1]) + genuine[_RUN_AT + 1 :]
    return [os.urandom(1000), b"", genuine[:5], other_run, genuine]


def throw(netns: str, address: str, thrown: Sequence[bytes]) -> None:
    """Send all of it."""
    with inside(netns), socket.socket(type=socket.SOCK_DGRAM) as throwing:
        for one in thrown:
            throwing.sendto(one, (address, MULTICAST_PORT))


def _payload(packet: bytes) -> tuple[int, bytes]:
    """Protocol and payload of what is in IPv4 in Ethernet."""
    internet = packet[_ETHERNET_BYTES:]
    if len(internet) < 40 or internet[0] >> 4 != 4:
        return -1, b""
    (length,), protocol = struct.unpack_from("!H", internet, 2), internet[9]
    segment = internet[4 * (internet[0] & 15) : length]
    header = 8 if protocol == socket.IPPROTO_UDP else 4 * (segment[12] >> 4)
    return protocol, segment[header:]


VISITS, DATAGRAMS = 9, 4
"""How many of ``visits`` and ``datagrams`` are counted as strangers'; a datagram that came already is a duplicate."""


def visits(run: int, sender: int, heard: dict[int, bytes]) -> list[bytes]:
    """What a stranger says, a connection each. ``sender``: a peer who is connected already."""
    greeting, gradient = heard[Kind.HELLO][:HEADER_BYTES], heard.get(Kind.GRADIENT, b"NRWS")
    return [
        os.urandom(4096),
        greeting[: HEADER_BYTES // 2],
        FrameHeader(Kind.HELLO, sender, run + 1, 0, 0, 0, 0).pack(),
        FrameHeader(Kind.HELLO, sender, run, 0, 0, 4 << 30, 0).pack(),
        FrameHeader(Kind.GRADIENT, sender, run, 3, 0, 100, 0).pack() + bytes(100),
        FrameHeader(Kind.WAIT_NOTICE, sender, run, 0, 0, 0, 0).pack(),
        greeting,
        greeting + gradient,
        gradient,
    ]


def visit(netns: str, address: str, said: Sequence[bytes]) -> None:
    """Say all of it, and go."""
    for one in said:
        with inside(netns):
            calling = socket.socket()
        with calling:
            calling.settimeout(5.0)
            calling.connect((address, DATA_PORT))
            with suppress(OSError):  # it may be shut out before it is done
                calling.sendall(one)
                calling.shutdown(socket.SHUT_WR)
                calling.recv(1)
