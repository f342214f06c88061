"""One direction of one link in the kernel: installed once, changed in place, read back, removed."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any

from testbed.errors import LinkError
from testbed.links import htb, ingress
from testbed.links.netlink import KernelRefused, Netlink
from testbed.links.plan import LEAVES, burst_bytes
from testbed.scenario.shape import End, Shape

DEFAULT_ROOTS = {"noqueue", "pfifo_fast", "fq_codel", "mq"}
"""Roots that the kernel puts there by itself; any other with a handle is somebody's."""

CLOSED_RATE_BITS = 1_000_000
"""What a class is set to before t0 when its link begins with an outage; its queue takes nothing."""

_TOLERANCE = 1e-3
_REST_NS = 5_000_000
_GONE = {errno.ENODEV, errno.ENOENT, errno.EINVAL, errno.EBADF}


@dataclass(frozen=True, slots=True)
class Where:
    """The device whose egress is shaped; ``redirect``: the device whose arrivals go through it."""

    netns: str | None
    index: int
    name: str
    redirect: int | None = None


class ShapedEnd:
    """Holds a socket in the device's namespace for as long as it lives. Not thread-safe."""

    def __init__(self, end: End, where: Where) -> None:
        self.end, self.where = end, where
        self.leaf = LEAVES[0]
        self.zero = htb.Counters(0, 0, 0, 0, 0, 0)
        """The counters when the end was last installed: what they count from."""
        self._flushed_packets = 0
        self._direct_before = 0
        self._netlink = Netlink(where.netns)
        self._read = htb.read_class(where.index)
        self._layouts: htb.Layouts = {}
        self._installed = False

    def install(self, shape: Shape) -> None:
        """Bring the device to ``shape``: a new tree the first time, in place afterwards.

        A queue that still holds packets, or a class that must not send yet, is what an earlier run left:
        then the tree is made anew. Raises LinkError for a root that is not ours.
        """
        self._put(shape)
        self.zero, self._flushed_packets = self.read(), 0
        self._direct_before = self._direct()

    def _put(self, shape: Shape) -> None:
        if self._installed and self._at_rest():
            rate, limit = _installable(shape)
            self.send(self.limit_message(limit), self.class_message(htb.pace(rate)))
            return
        root = self._root()
        if root is not None and root.handle == htb.ROOT_HANDLE and root.kind == "htb":
            self._netlink.request(*htb.delete_root(self.where.index))
        elif root is not None and root.handle and root.kind not in DEFAULT_ROOTS:
            raise self._mismatch(
                "a device without a queueing discipline of somebody else's",
                f"{root.kind} {root.handle >> 16:x}: on {self.where.name!r}",
            )
        self._make(shape)

    def _make(self, shape: Shape) -> None:
        index, (rate, limit) = self.where.index, _installable(shape)
        try:
            self._netlink.request(*htb.add_root(index))
            self._installed = True
            self._netlink.request(*htb.add_class(index, htb.pace(rate)))
            self._netlink.request(*htb.add_leaf(index, self.leaf, limit))
            if self.where.redirect is not None:
                self._redirect(self.where.redirect)
        except KernelRefused as error:
            raise self._mismatch(describe(shape), f"nothing: {error.strerror}") from error

    def _redirect(self, source: int) -> None:
        try:
            ingress.redirect(self._netlink, source, self.where.index)
        except KernelRefused as error:
            if error.errno != errno.EEXIST:
                raise

    def class_message(self, pace: htb.Pace) -> bytes:
        """The prepared message that sets the class."""
        return htb.change_class(self.where.index, pace)

    def limit_message(self, limit_bytes: int) -> bytes:
        """The prepared message that sets the queue's length."""
        return htb.change_leaf(self.where.index, self.leaf, limit_bytes)

    def send(self, *messages: bytes) -> None:
        """Have prepared messages carried out. Raises KernelRefused."""
        for prepared in messages:
            self._netlink.send(prepared)

    def flush(self) -> None:
        """Throw away what waits and take nothing in, until the queue's length is set again."""
        self.send(self.limit_message(0))
        waiting = self.read().backlog_packets
        self.leaf = LEAVES[1] if self.leaf == LEAVES[0] else LEAVES[0]
        self._netlink.request(*htb.add_leaf(self.where.index, self.leaf, 0))
        self._flushed_packets += waiting

    def read(self) -> htb.Counters:
        """The class's counters now."""
        return htb.decode_counters(self._netlink.ask(self._read), self._layouts)

    def drops(self, counters: htb.Counters) -> int:
        """Packets that the emulated queue has dropped since the end was installed."""
        return counters.drops - self.zero.drops + self._flushed_packets

    def direct_packets(self) -> int:
        """Packets that went past the class since the end was installed; there must be none."""
        return self._direct() - self._direct_before

    def verify(self, shape: Shape) -> dict[str, Any]:
        """Read everything back. Returns what is held; raises LinkError where it is not ``shape``."""
        rate, limit = _installable(shape)
        held = htb.decode_class(self._netlink.ask(self._read))
        wanted = htb.pace(rate)
        qdiscs = {qdisc.parent: qdisc for qdisc in self._qdiscs()}
        root, leaf = qdiscs.get(htb.AT_ROOT), qdiscs.get(htb.CLASS)
        burst = round(held.pace.burst_ticks * htb.TICK_NS * held.pace.rate_bytes / 1e9)
        found = {
            "device": self.where.name,
            "netns": self.where.netns,
            "kind": f"{root.kind if root else None}+{leaf.kind if leaf else None}",
            "rate_bits": held.pace.rate_bytes * 8,
            "burst_bytes": burst,
            "limit_bytes": leaf.limit_bytes if leaf else None,
            "default_class": root.default_minor if root else None,
            "quantum_bytes": held.quantum_bytes,
        }
        right = (
            found["kind"] == "htb+bfifo"
            and held.pace == wanted
            and (held.ceil_bytes, held.ceil_burst_ticks) == (wanted.rate_bytes, wanted.burst_ticks)
            and found["limit_bytes"] == limit
            and found["default_class"] == htb.CLASS & 0xFFFF
            and abs(burst - burst_bytes(rate)) <= 1 + burst_bytes(rate) * _TOLERANCE
        )
        if not right:
            raise self._mismatch(describe(shape), ", ".join(f"{k} {v}" for k, v in found.items()))
        return found

    def remove(self) -> None:
        """Take away what was installed and close; what has vanished with its device is no error."""
        try:
            if self._installed:
                self._netlink.request(*htb.delete_root(self.where.index))
            if self.where.redirect is not None:
                ingress.undo_redirect(self._netlink, self.where.redirect)
        except KernelRefused as error:
            if error.errno not in _GONE:
                raise
        finally:
            self._installed = False
            self._netlink.close()

    def _at_rest(self) -> bool:
        counters = self.read()
        return not counters.backlog_bytes and counters.debt_ns < _REST_NS

    def _direct(self) -> int:
        root = self._root()
        return (root.direct_packets or 0) if root else 0

    def _qdiscs(self) -> list[htb.Qdisc]:
        index = self.where.index
        decoded = map(htb.decode_qdisc, self._netlink.dump(htb.GET_QDISC, htb.qdisc_query(index)))
        return [qdisc for owner, qdisc in decoded if owner == index]

    def _root(self) -> htb.Qdisc | None:
        return next((qdisc for qdisc in self._qdiscs() if qdisc.parent == htb.AT_ROOT), None)

    def _mismatch(self, asked: str, held: str) -> LinkError:
        return LinkError(self.end.link, self.end.direction, asked=asked, held=held)


def describe(shape: Shape) -> str:
    """A shape in words, for messages."""
    if not shape.rate_bits:
        return f"an outage ({'packets dropped' if shape.drop else 'packets wait'})"
    return f"{shape.rate_bits} bit/s with a queue of {shape.queue_bytes} B"


def _installable(shape: Shape) -> tuple[int, int]:
    """Rate and queue length to install. An outage itself is held by the replay, from t0 on."""
    return (shape.rate_bits, shape.queue_bytes) if shape.rate_bits else (CLOSED_RATE_BITS, 0)
