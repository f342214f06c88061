"""One direction of one link in the kernel: installed once, changed in place, read back, removed."""

from __future__ import annotations

from typing import Any

from testbed.links import htb
from testbed.links.channel import KernelRefused
from testbed.links.plan import LEAVES, MOST_TICKS, TICK_NS, Pace, burst_bytes, pace
from testbed.links.root import Rooted, Where
from testbed.scenario.shape import End, Shape

CLOSED_RATE_BITS = 1_000_000
"""What a class is set to before t0 when its link begins with an outage; its queue takes nothing."""

_TOLERANCE = 1e-3
_REST_NS = 5_000_000


class ShapedEnd(Rooted):
    """The queue and the rate of a link direction. Not thread-safe."""

    def __init__(self, end: End, where: Where) -> None:
        super().__init__(end, where)
        self.leaf = LEAVES[0]
        self.zero = htb.Counters(0, 0, 0, 0, 0, 0)
        """The counters when the end was last installed: what they count from."""
        self._flushed_packets = 0
        self._direct_before = 0
        self._read = htb.read_class(where.index)

    def install(self, shape: Shape) -> None:
        """Bring the device to ``shape``: a new tree the first time, in place afterwards.

        A queue that still holds packets, or a class that must not send yet, is what an earlier run left:
        then the tree is made anew. Raises LinkError for a root that is not ours.
        """
        self._put(shape)
        self.zero, self._flushed_packets = self.read(), 0
        self._direct_before = self._direct()

    def _put(self, shape: Shape) -> None:
        if self.installed and self._at_rest():
            rate, limit = _installable(shape)
            setting = pace(rate, shape.overhead_bytes)
            self.send(self.limit_message(limit), self.class_message(setting))
            return
        self._make_room()
        self._make(shape)

    def _make(self, shape: Shape) -> None:
        index, (rate, limit) = self.where.index, _installable(shape)
        try:
            self.send(htb.add_root(index))
            self.installed = True
            self.send(
                htb.add_class(index, pace(rate, shape.overhead_bytes)),
                htb.add_leaf(index, self.leaf, limit),
            )
            self._lead_in()
        except KernelRefused as error:
            raise self._mismatch(describe(shape), f"nothing: {error.strerror}") from error

    def class_message(self, setting: Pace) -> bytes:
        """The prepared message that sets the class."""
        return htb.change_class(self.where.index, setting)

    def limit_message(self, limit_bytes: int) -> bytes:
        """The prepared message that sets the queue's length."""
        return htb.change_leaf(self.where.index, self.leaf, limit_bytes)

    def flush(self) -> None:
        """Throw away what waits and take nothing in, until the queue's length is set again."""
        self.send(self.limit_message(0))
        waiting = self.read().backlog_packets
        self.leaf = LEAVES[1] if self.leaf == LEAVES[0] else LEAVES[0]
        self.send(htb.add_leaf(self.where.index, self.leaf, 0))
        self._flushed_packets += waiting

    def read(self) -> htb.Counters:
        """The class's counters now."""
        return htb.decode_counters(self._channel.ask(self._read))

    def held_limit(self) -> int:
        """The queue's length that the kernel holds now, bytes. Raises KernelRefused."""
        return htb.decode_limit(self._channel.ask(htb.read_leaf(self.where.index, self.leaf)))

    def drops(self, counters: htb.Counters) -> int:
        """Packets that the emulated queue has dropped since the end was installed."""
        return counters.drops - self.zero.drops + self._flushed_packets

    def direct_packets(self) -> int:
        """Packets that went past the class since the end was installed; there must be none."""
        return self._direct() - self._direct_before

    def verify(self, shape: Shape) -> dict[str, Any]:
        """Read everything back. Returns what is held; raises LinkError where it is not ``shape``."""
        rate, limit = _installable(shape)
        held = htb.decode_class(self._channel.ask(self._read))
        wanted = pace(rate, shape.overhead_bytes)
        qdiscs = {qdisc.parent: qdisc for qdisc in self._qdiscs()}
        root, leaf = qdiscs.get(htb.AT_ROOT), qdiscs.get(htb.CLASS)
        burst = round(held.pace.burst_ticks * TICK_NS * held.pace.rate_bytes / 1e9)
        clipped = wanted.burst_ticks == MOST_TICKS
        found = {
            "device": self.where.name,
            "netns": self.where.netns,
            "kind": f"{root.kind if root else None}+{leaf.kind if leaf else None}",
            "rate_bits": held.pace.rate_bytes * 8,
            "burst_bytes": burst,
            "limit_bytes": leaf.limit_bytes if leaf else None,
            "default_class": root.default_minor if root else None,
            "quantum_bytes": held.quantum_bytes,
            "overhead_bytes": held.pace.overhead_bytes,
        }
        right = (
            found["kind"] == "htb+bfifo"
            and held.pace == wanted
            and (held.ceil_bytes, held.ceil_burst_ticks) == (wanted.rate_bytes, wanted.burst_ticks)
            and found["limit_bytes"] == limit
            and found["default_class"] == htb.CLASS & 0xFFFF
            and (clipped or abs(burst - burst_bytes(rate)) <= 1 + burst_bytes(rate) * _TOLERANCE)
        )
        if not right:
            raise self._mismatch(describe(shape), ", ".join(f"{k} {v}" for k, v in found.items()))
        return found

    def _at_rest(self) -> bool:
        counters = self.read()
        return not counters.backlog_bytes and counters.debt_ns < _REST_NS

    def _direct(self) -> int:
        root = self._root()
        return (root.direct_packets or 0) if root else 0

    def _deletion(self) -> bytes:
        return htb.delete_root(self.where.index)


def describe(shape: Shape) -> str:
    """A shape in words, for messages."""
    if not shape.rate_bits:
        return f"an outage ({'packets dropped' if shape.drop else 'packets wait'})"
    overhead = (
        f", each packet charged {shape.overhead_bytes} B more" if shape.overhead_bytes else ""
    )
    return f"{shape.rate_bits} bit/s with a queue of {shape.queue_bytes} B{overhead}"


def _installable(shape: Shape) -> tuple[int, int]:
    """Rate and queue length to install. An outage itself is held by the replay, from t0 on."""
    return (shape.rate_bits, shape.queue_bytes) if shape.rate_bits else (CLOSED_RATE_BITS, 0)
