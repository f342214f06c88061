"""A node's own network interfaces, seen from inside: no privileges, and no netlink."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

from testbed.errors import MachineError
from testbed.group import Carried

_ADDRESS_OF = 0x8915
"""SIOCGIFADDR (include/uapi/linux/sockios.h)."""
_COUNTERS = Path("/proc/thread-self/net/dev")
_SENT = 8
"""Of the numbers after an interface's name: the first is bytes received, this one bytes sent."""


def interface_of(address: str) -> str:
    """The name of the interface that has this IPv4 address. Raises MachineError where none has."""
    names = [name for _, name in socket.if_nameindex()]
    for name in names:
        if _address(name) == address:
            return name
    raise MachineError(f"no interface of this node has the address {address}: {', '.join(names)}")


def carried(interface: str) -> Carried:
    """Its counters. Raises MachineError where there is no such interface."""
    for line in _COUNTERS.read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            fields = numbers.split()
            return Carried(interface, sent=int(fields[_SENT]), received=int(fields[0]))
    raise MachineError(f"{_COUNTERS} says nothing of the interface {interface}")


def _address(name: str) -> str | None:
    """None for one without an address."""
    request = struct.pack("256s", name.encode()[:15])  # a `struct ifreq`, with room to spare
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            reply = fcntl.ioctl(any_socket, _ADDRESS_OF, request)
        except OSError:
            return None
    return socket.inet_ntoa(reply[20:24])  # 16 of the name, then a `struct sockaddr_in`
