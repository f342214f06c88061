"""PyTorch's gloo among the nodes of a run, bound to the data network:
``testbed.node.CollectiveGroup``.

Left to itself gloo takes the address that the host's name stands for, which may be the loopback's
or the control network's. Here it is given the interface that has the node's data address, and its
rendezvous takes place there too.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from testbed.errors import MachineError, NodeLost
from testbed.node import GroupTraffic

if TYPE_CHECKING:
    from torch import Tensor


_ADDRESS_OF = 0x8915
"""SIOCGIFADDR (include/uapi/linux/sockios.h)."""
_COUNTERS = Path("/proc/thread-self/net/dev")
_SENT = 8
"""Position of the bytes sent in a line of counters; bytes received come first."""


def interface_of(address: str) -> str:
    """The name of the interface that has this IPv4 address. Raises MachineError where none has."""
    names = [name for _, name in socket.if_nameindex()]
    for name in names:
        if _address(name) == address:
            return name
    raise MachineError(f"no interface of this node has the address {address}: {', '.join(names)}")


def carried(interface: str) -> GroupTraffic:
    """Its counters. Raises MachineError where there is no such interface."""
    for line in _COUNTERS.read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            fields = numbers.split()
            return GroupTraffic(interface, sent=int(fields[_SENT]), received=int(fields[0]))
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


_THREADS = 2
"""Operations that may be under way at a time; PyTorch's own default."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where ``members`` (all of them, by rank) meet: at ``address`` and ``port`` of the first one.

    ``own``: this node's rank; ``own_address``: its data address. ``patience_s``: how long members
    are waited for; ``timeout_s``: how long an operation may take.
    """

    members: Sequence[str]
    own: int
    own_address: str
    address: str
    port: int
    patience_s: float
    timeout_s: float


class GlooGroup:
    """One node's membership. Raises NodeLost when the others do not come."""

    def __init__(self, meeting: Meeting, now: Callable[[], float]) -> None:
        self._meeting, self._now = meeting, now
        self._interface = interface_of(meeting.own_address)
        try:
            self._store: Any = _store(meeting)
            self._group: Any = self._join(self._store)
        except (RuntimeError, OSError) as error:  # DistError is a RuntimeError
            raise self._lost("cannot meet: ", error) from error
        self._before = carried(self._interface)

    def add_up(self, values: Tensor) -> GlooOperation:
        """See ``testbed.node.CollectiveGroup``."""
        return self._begin(lambda: self._group.allreduce([values]))

    def gather(self, own: Tensor, everybodys: Tensor) -> GlooOperation:
        """See ``testbed.node.CollectiveGroup``."""
        return self._begin(lambda: self._group._allgather_base(everybodys, own))

    def carried(self) -> GroupTraffic:
        """See ``testbed.node.CollectiveGroup``."""
        return carried(self._interface).since(self._before)

    def close(self) -> None:
        """See ``testbed.node.CollectiveGroup``."""
        self._group = self._store = None  # what they hold ends with them

    def _join(self, store: Any) -> Any:
        meeting, count = self._meeting, len(self._meeting.members)
        here = [f"here/{rank}" for rank in range(count)]
        store.set(here[meeting.own], "")
        store.wait(here, timedelta(seconds=meeting.patience_s))
        gloo: Any = dist.ProcessGroupGloo  # its options are not in PyTorch's type stubs
        options = gloo._Options()
        options._devices = [gloo.create_device(interface=self._interface)]
        options._timeout = timedelta(seconds=meeting.timeout_s)
        options._threads = _THREADS
        return gloo(store, meeting.own, count, options)

    def _begin(self, action: Callable[[], Any]) -> GlooOperation:
        try:
            return GlooOperation(action(), self._now, self._lost)
        except RuntimeError as error:
            raise self._lost("", error) from error

    def _lost(self, prefix: str, error: Exception) -> NodeLost:
        """Gloo does not say whom: it may be any of the others."""
        members = self._meeting.members
        others = ", ".join(name for rank, name in enumerate(members) if rank != self._meeting.own)
        return NodeLost(others, None, f"gloo: {prefix}{_said(error)}")


class GlooOperation:
    """One that is under way (``testbed.node.Pending``)."""

    def __init__(
        self, work: Any, now: Callable[[], float], lost: Callable[[str, Exception], NodeLost]
    ) -> None:
        self._work, self._now, self._lost = work, now, lost
        self._ended_s: float | None = None
        work.get_future().add_done_callback(self._end)

    def wait(self) -> float:
        """See ``testbed.node.Pending``."""
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._lost("", error) from error
        return self._now() if self._ended_s is None else self._ended_s

    def _end(self, _: Any) -> None:
        """In a thread of gloo's, as soon as it has ended."""
        self._ended_s = self._now()


def _store(meeting: Meeting) -> Any:
    """The first member's answers on its data address alone."""
    make: Any = dist.TCPStore  # type: ignore[attr-defined]
    patience, count = timedelta(seconds=meeting.patience_s), len(meeting.members)
    if meeting.own:
        return make(meeting.address, meeting.port, count, False, patience, wait_for_workers=False)
    listener = socket.create_server((meeting.address, meeting.port), backlog=128)
    return make(
        meeting.address,
        meeting.port,
        count,
        True,
        patience,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _said(error: Exception) -> str:
    """Return what happened, without the place in gloo's source and the advice that follows."""
    text = str(error).splitlines()[0].partition("] ")
    return (text[2] or text[0]).partition(". This is")[0]
