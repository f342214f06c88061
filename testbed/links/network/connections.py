"""TCP connections of namespaces followed to their end by inet_diag (``NETLINK_SOCK_DIAG``), and
what interfaces carried meanwhile.

A socket that is destroyed tells its counters once, to whoever listens in its namespace; those still
open at the end are listed then. Together they are all there were, however short they lived.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from threading import Thread

from pyroute2.netlink import NETLINK_SOCK_DIAG
from pyroute2.netlink.diag import (
    SKNLGRP_INET6_TCP_DESTROY,
    SKNLGRP_INET_TCP_DESTROY,
    SOCK_DIAG_BY_FAMILY,
    SS_ALL,
    SS_CLOSE,
    SS_LISTEN,
    SS_TIME_WAIT,
    inet_diag_msg,
    inet_diag_req,
)

from testbed.links.agent.protocol import InterfaceSeen, SocketSeen, Watched
from testbed.links.network.devices import interfaces
from testbed.links.network.namespaces import opened
from testbed.links.tc.netlink import (
    AttributeReader,
    NetlinkChannel,
    NetlinkMessage,
    listener,
    split,
    tolerating,
)
from testbed.scenario.link_state import UNKNOWN_RTT_US

FAMILIES = (socket.AF_INET, socket.AF_INET6)
DESTROYED = (SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY)
"""Multicast groups that tell of every TCP socket as it is destroyed: IPv4, IPv6."""

_INFO = 2
_CONNECTED = SS_ALL & ~sum(1 << state for state in (SS_TIME_WAIT, SS_CLOSE, SS_LISTEN))
_COUNTERS = (
    *("segs_out", "min_rtt", "total_retrans"),
    *("bytes_sent", "bytes_received", "bytes_retrans"),
)
_SEEN = AttributeReader(
    inet_diag_msg,
    *(f"idiag_{name}" for name in ("family", "src", "sport", "dst", "dport", "cookie")),
    "INET_DIAG_INFO.header.length",
    *(f"INET_DIAG_INFO.tcpi_{name}" for name in _COUNTERS),
)


def query(family: int) -> NetlinkMessage:
    """The request for all connections of a family with their counters."""
    fields = {"sdiag_family": family, "sdiag_protocol": socket.IPPROTO_TCP}
    return NetlinkMessage(
        inet_diag_req, {**fields, "idiag_ext": 1 << (_INFO - 1), "idiag_states": _CONNECTED}
    )


def decode(message: bytes, ended_ns: int | None = None) -> SocketSeen | None:
    """Read a description; None for a socket that never sent. Raises OSError on old kernels."""
    family, own, own_port, peer, peer_port, cookie, length, *counters = _SEEN(message)
    if length is not None and None in counters:
        lacking = (name for name, count in zip(_COUNTERS, counters, strict=True) if count is None)
        raise OSError(f"the kernel's tcp_info lacks {', '.join(lacking)}")
    segments, least_rtt_us, retransmitted, sent, received, sent_again = counters
    if not segments:
        return None
    return SocketSeen(
        cookie=cookie,
        own=_end(family, own, own_port),
        peer=_end(family, peer, peer_port),
        bytes_sent=sent,
        bytes_received=received,
        segments_out=segments,
        retransmitted=retransmitted,
        bytes_retransmitted=sent_again,
        least_rtt_us=None if least_rtt_us == UNKNOWN_RTT_US else least_rtt_us,
        ended_ns=ended_ns,
    )


def _end(family: int, address: bytes, port: bytes) -> str:
    length = 4 if family == socket.AF_INET else 16
    parsed = ip_address(address[:length])
    # A socket for both versions that speaks IPv4 has the address in IPv6's clothes.
    if isinstance(parsed, IPv6Address):
        parsed = parsed.ipv4_mapped or parsed
    number = int.from_bytes(port, "big")
    return f"{parsed}:{number}" if parsed.version == 4 else f"[{parsed}]:{number}"


_BUFFER_BYTES = 8 << 20
_MESSAGE_BYTES = 1 << 16
_QUIET_S, _LONGEST_S = 0.05, 1.0
"""The kernel queues news of sockets' ends; none for so long means that all have come."""
MOST = 200_000
"""Connections that are kept, of all nodes together: of each the kernel tells some hundred bytes."""


@dataclass
class Listening:
    """One namespace's notifications. They are decoded at the end: a replay may be running now."""

    netns: str
    socket: socket.socket
    room: Iterator[int] = field(default_factory=lambda: iter(range(MOST)))
    """A number for each connection that may still be kept, of all nodes."""
    heard: list[tuple[int, bytes]] = field(default_factory=list)
    missed: str | None = None
    """Why some connections are not among them."""

    def take(self) -> None:
        """All that has come. Only what was lost is an error, and it is kept."""
        while True:
            try:
                data = self.socket.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.missed = "connections ended faster than they could be noted"
                continue
            if next(self.room, None) is None:
                self.missed = f"more than {MOST} connections ended"
                continue
            self.heard.append((time.monotonic_ns(), data))


class SocketWatch:
    """Follows the namespaces at ``nodes``' paths until ``end``. Raises OSError."""

    def __init__(self, nodes: Mapping[str, str]) -> None:
        self._stack = ExitStack()
        self._selector = self._stack.enter_context(selectors.DefaultSelector())
        self._listening: dict[str, Listening] = {}
        self._room = iter(range(MOST))
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC)
            self._stack.callback(os.close, self._wake)
            self._selector.register(self._wake, selectors.EVENT_READ)
            for node, netns in nodes.items():
                self._listen(node, netns)
        except BaseException:
            self._stack.close()
            raise
        self._thread = Thread(target=self._follow, name="sockets", daemon=True)
        self._thread.start()

    def interfaces(self) -> dict[str, list[InterfaceSeen]]:
        """Return the interfaces' counters at this moment, keyed by node."""
        counters = {}
        for node, listening in self._listening.items():
            with NetlinkChannel(listening.netns) as channel:
                counters[node] = interfaces(channel)
        return counters

    def end(self) -> dict[str, Watched]:
        """Stop following; by node, what there was."""
        counters = self.interfaces()
        still = {node: self._open(each.netns) for node, each in self._listening.items()}
        self._settle()
        self.close()
        return {
            node: Watched(
                # What has ended since it was listed is told of twice: the later counts hold.
                _decoded([*still[node], *listening.heard]),
                tuple(counters[node]),
                listening.missed,
            )
            for node, listening in self._listening.items()
        }

    def close(self) -> None:
        """Follow no longer; safe to call twice."""
        if self._thread.is_alive():
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        self._stack.close()

    def _listen(self, node: str, netns: str) -> None:
        # This path leads there when the process that the namespace was named by has ended, too.
        path = f"/proc/self/fd/{self._stack.enter_context(opened(netns))}"
        news = self._stack.enter_context(listener(path, DESTROYED, _BUFFER_BYTES))
        self._listening[node] = Listening(path, news, self._room)
        self._selector.register(news, selectors.EVENT_READ, self._listening[node])

    def _follow(self) -> None:
        over = False
        while not over:
            for key, _ in self._selector.select():
                if key.data is None:
                    over = True
                    continue
                try:
                    key.data.take()
                except OSError as error:
                    key.data.missed = f"ends of connections could not be read: {error}"
                    self._selector.unregister(key.fileobj)

    def _open(self, netns: str) -> list[tuple[None, bytes]]:
        """Return what is told of a namespace's open connections, as ``Listening.heard`` has it."""
        messages: list[bytes] = []
        with NetlinkChannel(netns, NETLINK_SOCK_DIAG) as channel:
            for family in FAMILIES:
                with tolerating(errno.ENOENT):  # there is no IPv6 here
                    messages += channel.dump_raw(query(family), SOCK_DIAG_BY_FAMILY)
        return [(None, message) for message in messages]

    def _settle(self) -> None:
        """Until nothing more is told of sockets that had ended before they were listed."""
        give_up, before = time.monotonic() + _LONGEST_S, -1
        while (now := self._heard()) != before and time.monotonic() < give_up:
            before = now
            time.sleep(_QUIET_S)

    def _heard(self) -> int:
        return sum(len(listening.heard) for listening in self._listening.values())


def _decoded(datagrams: Iterable[tuple[int | None, bytes]]) -> tuple[SocketSeen, ...]:
    messages = ((ns, message) for ns, data in datagrams for _, _, message in split(data))
    by_cookie = {each.cookie: each for ns, message in messages if (each := decode(message, ns))}
    return tuple(by_cookie.values())
