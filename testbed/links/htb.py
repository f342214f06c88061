"""Encoding and decoding of the queueing tree: an HTB root, one class, a ``bfifo`` leaf.

Rates are bit/s outside and byte/s on the wire; times inside the kernel's messages are ticks of 64 ns.
The link layer is declared Ethernet, so that no rate table has to be sent.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from testbed.links.netlink import (
    ACK,
    CREATE,
    ECHO,
    EXCL,
    REPLACE,
    attribute,
    attribute_offsets,
    attributes,
    message,
    nested,
    number,
    text,
)
from testbed.links.plan import CLASS_MINOR, QUANTUM_BYTES, ROOT, burst_bytes

NEW_QDISC, DEL_QDISC, GET_QDISC = 36, 37, 38
NEW_CLASS, GET_CLASS = 40, 42
TICK_NS = 64
AT_ROOT = 0xFFFFFFFF
ROOT_HANDLE = ROOT << 16
CLASS = ROOT_HANDLE | CLASS_MINOR
_KIND, _OPTIONS, _XSTATS, _STATS2 = 1, 2, 4, 7
_BASIC, _QUEUE, _PACKETS64 = 1, 3, 8
_PARAMETERS, _INIT, _RATE64, _CEIL64 = 1, 2, 6, 7
_ETHERNET = 1
_MAX32, _MAX16 = 0xFFFFFFFF, 0xFFFF
MOST_TICKS = _MAX32
"""The longest burst that a class can be given, 275 s: at 40 bit/s and below a frame takes longer."""
_TC = struct.Struct("=BxxxiIII")
_RATE = struct.Struct("=BBHhHI")
_CLASS_TAIL = struct.Struct("=IIIII")
_GLOBAL = struct.Struct("=IIIII")
_BASIC_LAYOUT, _QUEUE_LAYOUT = struct.Struct("=QI"), struct.Struct("=III")
_PACKETS64_LAYOUT, _TOKENS_LAYOUT = struct.Struct("=Q"), struct.Struct("=ii")
_RATE_LAYOUT, _RATE64_LAYOUT = struct.Struct("=I"), struct.Struct("=Q")
Layouts = dict[int, tuple[int, int, int, int, int, int]]
"""Where counters are in answers, by length of the answer: one of these per class."""


class Pace(NamedTuple):
    """What a class is set to. ``mpu_bytes``: every packet is charged at least so many bytes.

    ``overhead_bytes`` are charged for every packet on top of its length. Counters of bytes know of neither.
    """

    rate_bytes: int
    burst_ticks: int
    mpu_bytes: int = 0
    overhead_bytes: int = 0


class Counters(NamedTuple):
    """A class at one instant; ``debt_ns`` is how long it may not send yet for what it sent.

    ``rate_bytes`` is the rate that it is set to, in byte/s.
    """

    bytes: int
    packets: int
    backlog_bytes: int
    backlog_packets: int
    drops: int
    debt_ns: int
    rate_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HeldClass:
    """A class's settings as the kernel tells them."""

    pace: Pace
    ceil_bytes: int
    ceil_burst_ticks: int
    quantum_bytes: int


@dataclass(frozen=True, slots=True)
class Qdisc:
    """A queueing discipline as the kernel tells it. ``limit_bytes`` only of a ``bfifo``."""

    kind: str
    handle: int
    parent: int
    limit_bytes: int | None = None
    default_minor: int | None = None
    direct_packets: int | None = None


def pace(rate_bits: int, overhead_bytes: int = 0) -> Pace:
    """The setting for a rate above 0."""
    rate = -(-rate_bits // 8)
    ticks = burst_ticks(rate, burst_bytes(rate_bits))
    return Pace(rate, ticks, overhead_bytes=overhead_bytes)


def burst_ticks(rate_bytes: int, burst: int) -> int:
    """The time that ``burst`` bytes take at a rate, in ticks, as the kernel wants a burst."""
    return min(MOST_TICKS, max(1, round(burst * 1e9 / rate_bytes / TICK_NS)))


def head(index: int, handle: int, parent: int) -> bytes:
    """How every message about a discipline or class begins."""
    return _TC.pack(0, index, handle, parent, 0)


def root_body(index: int) -> bytes:
    """The HTB root whose unclassified traffic goes to our class."""
    init = attribute(_INIT, _GLOBAL.pack(3, 10, CLASS_MINOR, 0, 0))
    return head(index, ROOT_HANDLE, AT_ROOT) + attribute(_KIND, "htb") + nested(_OPTIONS, init)


def class_body(index: int, setting: Pace) -> bytes:
    """Our class, with every value: what is left out the kernel would set to something else."""
    charged = (setting.overhead_bytes, -1, setting.mpu_bytes)
    rate = _RATE.pack(0, _ETHERNET, *charged, min(setting.rate_bytes, _MAX32))
    tail = _CLASS_TAIL.pack(setting.burst_ticks, setting.burst_ticks, QUANTUM_BYTES, 0, 0)
    options = [attribute(_PARAMETERS, rate + rate + tail)]
    if setting.rate_bytes >= _MAX32:
        wide = struct.pack("=Q", setting.rate_bytes)
        options += [attribute(_RATE64, wide), attribute(_CEIL64, wide)]
    return head(index, CLASS, ROOT_HANDLE) + attribute(_KIND, "htb") + nested(_OPTIONS, *options)


def leaf_body(index: int, leaf: int, limit_bytes: int) -> bytes:
    """The tail-drop queue under our class; ``leaf`` is its major handle."""
    limit = attribute(_OPTIONS, struct.pack("=I", limit_bytes))
    return head(index, leaf << 16, CLASS) + attribute(_KIND, "bfifo") + limit


def add_root(index: int) -> tuple[int, int, bytes]:
    """Arguments of ``Netlink.request`` that install the root."""
    return NEW_QDISC, CREATE | EXCL, root_body(index)


def add_class(index: int, setting: Pace) -> tuple[int, int, bytes]:
    """Arguments of ``Netlink.request`` that make the class."""
    return NEW_CLASS, CREATE | EXCL, class_body(index, setting)


def add_leaf(index: int, leaf: int, limit_bytes: int) -> tuple[int, int, bytes]:
    """Arguments of ``Netlink.request`` that put a new, empty queue in the place of the old one."""
    return NEW_QDISC, CREATE | REPLACE, leaf_body(index, leaf, limit_bytes)


def delete_root(index: int, handle: int = ROOT_HANDLE) -> tuple[int, int, bytes]:
    """Arguments of ``Netlink.request`` that remove a root with everything under it."""
    return DEL_QDISC, 0, head(index, handle, AT_ROOT)


def change_class(index: int, setting: Pace) -> bytes:
    """A prepared message that changes the class in place; the queue and the debt stay."""
    return message(NEW_CLASS, ACK, class_body(index, setting))


def change_leaf(index: int, leaf: int, limit_bytes: int) -> bytes:
    """A prepared message that changes the queue's length in place; what waits stays."""
    return message(NEW_QDISC, ACK, leaf_body(index, leaf, limit_bytes))


def read_class(index: int) -> bytes:
    """A prepared message that asks for the class. Echo: some kernels answer to listeners only."""
    return message(GET_CLASS, ECHO, head(index, CLASS, ROOT_HANDLE))


def read_leaf(index: int, leaf: int) -> bytes:
    """A prepared message that asks for the queue under our class."""
    return message(GET_QDISC, ECHO, head(index, leaf << 16, CLASS))


def qdisc_query(index: int) -> bytes:
    """Body of a dump of the disciplines of a device (some kernels list all devices' anyway)."""
    return head(index, 0, 0)


def decode_counters(answer: bytes, layouts: Layouts) -> Counters:
    """Counters out of the answer to ``read_class``.

    ``layouts`` remembers where they are in an answer of that length: looking for them takes three times
    as long as reading them, and a link is looked at 50 times a second.
    """
    known = layouts.get(len(answer))
    if known is None:
        known = layouts[len(answer)] = _find(answer)
    basic, queue, packets64, xstats, parameters, rate64 = known
    size, packets = _BASIC_LAYOUT.unpack_from(answer, basic)
    waiting, backlog, drops = _QUEUE_LAYOUT.unpack_from(answer, queue)
    if packets64:
        (packets,) = _PACKETS64_LAYOUT.unpack_from(answer, packets64)
    tokens, ceil_tokens = _TOKENS_LAYOUT.unpack_from(answer, xstats + 12)
    debt = max(0, -min(tokens, ceil_tokens)) * TICK_NS
    if rate64:
        (rate,) = _RATE64_LAYOUT.unpack_from(answer, rate64)
    else:
        (rate,) = _RATE_LAYOUT.unpack_from(answer, parameters + 8)
    return Counters(size, packets, backlog, waiting, drops, debt, rate)


def _find(answer: bytes) -> tuple[int, int, int, int, int, int]:
    outer = attribute_offsets(answer, 36, len(answer))
    begin, end = outer[_STATS2]
    stats = attribute_offsets(answer, begin, end)
    options = attribute_offsets(answer, *outer[_OPTIONS])
    return (
        stats[_BASIC][0],
        stats[_QUEUE][0],
        stats[_PACKETS64][0] if _PACKETS64 in stats else 0,
        outer[_XSTATS][0],
        options[_PARAMETERS][0],
        options[_RATE64][0] if _RATE64 in options else 0,
    )


def decode_class(answer: bytes) -> HeldClass:
    """Settings out of the answer to ``read_class``."""
    options = attributes(attributes(answer[36:])[_OPTIONS])
    parameters = options[_PARAMETERS]
    _, _, overhead, _, mpu, rate = _RATE.unpack_from(parameters)
    *_, ceil = _RATE.unpack_from(parameters, 12)
    burst, ceil_burst, quantum, _, _ = _CLASS_TAIL.unpack_from(parameters, 24)
    rate = number(options[_RATE64]) if _RATE64 in options else rate
    ceil = number(options[_CEIL64]) if _CEIL64 in options else ceil
    return HeldClass(Pace(rate, burst, mpu, overhead), ceil, ceil_burst, quantum)


def decode_qdisc(body: bytes) -> tuple[int, Qdisc]:
    """Device index and discipline out of one entry of a dump."""
    _, index, handle, parent, _ = _TC.unpack_from(body)
    held = attributes(body[20:])
    kind = text(held.get(_KIND, b""))
    options = held.get(_OPTIONS, b"")
    if kind == "htb":
        *_, minor, _, direct = _GLOBAL.unpack_from(attributes(options)[_INIT])
        return index, Qdisc(kind, handle, parent, default_minor=minor, direct_packets=direct)
    limit = number(options[:4]) if kind == "bfifo" else None
    return index, Qdisc(kind, handle, parent, limit_bytes=limit)
