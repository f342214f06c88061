"""The three sockets of a multicaster, and the addresses of groups."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address

from testbed.errors import MachineError
from testbed.exchange.arrival import ask_for_stamps
from testbed.exchange.multicast.packet import fold

_MULTICAST_ALL = 49
"""Switched off, a socket has only what goes to groups it has joined itself; Python has no name for it."""
_RECEIVE_BYTES = 8 << 20
_LEAST_ROOM = 32 << 10
_PACKET_ROOM = 1152
"""Half of what the kernel counts for a packet: it doubles what it is asked for."""
MOST_GROUPS = 1 << 16


def group_address(run: int, group: int) -> str:
    """Where a group's datagrams go: 239.0.0.0/8 is for local use (RFC 2365)."""
    if not 0 <= group < MOST_GROUPS:
        raise ValueError(f"group {group}: there may be {MOST_GROUPS}")
    return str(IPv4Address("239.0.0.0") + ((fold(run) & 0xFF) << 16) + group)


class Sockets:
    """``groups`` and ``own`` receive; ``own`` sends reports and questions, ``out`` all that may fill a link.

    Made in the network namespace of the calling thread. Raises OSError.
    """

    def __init__(self, address: str, port: int) -> None:
        self.address = address
        self.groups = _receiver("", port)
        self.own = _receiver(address, port)
        self.out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.out.setblocking(False)
        self.out.bind((address, 0))
        self._room = 0
        self.make_room(0)
        loopback = IPv4Address(address).is_loopback
        for sends in (self.own, self.out):
            sends.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
            sends.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, loopback)

    def make_room(self, packets: int) -> None:
        """Let so many packets, but at least about 28, wait in one's own link's queue.

        A sender that is late to fill the link up must have left it something to do; and what may not be under way
        shall not wait there either: a short queue would drop it without a word to the socket.
        """
        room = max(_LEAST_ROOM, packets * _PACKET_ROOM)
        if not self._room / 2 <= room <= self._room:
            self._room = room + room // 4
            self.out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._room)

    def join(self, group: str) -> None:
        """Become a member of a group. Raises MachineError where the kernel allows no more memberships."""
        membership = socket.inet_aton(group) + socket.inet_aton(self.address)
        try:
            self.groups.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            raise MachineError(
                f"the kernel lets a node be in no more multicast groups: {group} is one too many",
                fix="Raise net.ipv4.igmp_max_memberships in the nodes' namespaces",
            ) from error

    def close(self) -> None:
        """Leave all groups."""
        for held in self:
            with suppress(OSError):
                held.close()

    def __iter__(self) -> Iterator[socket.socket]:
        return iter((self.groups, self.own, self.out))


def _receiver(address: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    ask_for_stamps(made)
    made.setsockopt(socket.IPPROTO_IP, _MULTICAST_ALL, 0)
    made.bind((address, port))
    return made
