"""Somebody on the data network who has no part in a run, with what real peers have sent at hand."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress

from testbed.exchange.frame import HEADER_BYTES, MAGIC, Header
from testbed.fabric.base import DATA_PORT, Interface
from testbed.links.namespaces import inside
from testbed.node import Kind

_ETHERNET_BYTES, _LOOK_S = 14, 0.5


class Listening:
    """Keeps the first frame of each kind that an interface passes, or the first packet of it."""

    def __init__(self, nic: Interface) -> None:
        with inside(nic.netns):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.bind((nic.name, 0))
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
        while not self._ended:
            with suppress(TimeoutError):
                packet = self._socket.recv(1 << 16)
                payload = _payload(packet)
                if payload.startswith(MAGIC) and len(payload) >= HEADER_BYTES:
                    self._heard.setdefault(payload[5], payload)


def _payload(packet: bytes) -> bytes:
    """Of a TCP segment in IPv4 in Ethernet."""
    internet = packet[_ETHERNET_BYTES:]
    if len(internet) < 40 or internet[0] >> 4 != 4 or internet[9] != socket.IPPROTO_TCP:
        return b""
    (length,) = struct.unpack_from("!H", internet, 2)
    segment = internet[4 * (internet[0] & 15) : length]
    return segment[4 * (segment[12] >> 4) :]


VISITS = 9


def visits(run: int, sender: int, heard: dict[int, bytes]) -> list[bytes]:
    """What a stranger says, a connection each. ``sender``: a peer who is connected already."""
    greeting, gradient = heard[Kind.HELLO][:HEADER_BYTES], heard[Kind.GRADIENT]
    return [
        os.urandom(4096),
        greeting[: HEADER_BYTES // 2],
        Header(Kind.HELLO, sender, run + 1, 0, 0, 0, 0).pack(),
        Header(Kind.HELLO, sender, run, 0, 0, 4 << 30, 0).pack(),
        Header(Kind.GRADIENT, sender, run, 3, 0, 100, 0).pack() + bytes(100),
        Header(Kind.WAITING, sender, run, 0, 0, 0, 0).pack(),
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
