"""An encoder of traffic control's messages by hand: a second opinion on what pyroute2 makes of them.

The links' own until pyroute2 took its place; it shares no line with either. What it makes of one message of each kind is in
``netlink_messages.json``, as the code of then made it. The only bursts that differ are those below 2 Gbit/s, since halved.
"""

from __future__ import annotations

import struct
from math import ceil

from testbed.links.tc.netem import NetemState
from testbed.links.tc.parameters import LinkPace, table
from testbed.scenario.link_state import FourState, GilbertElliott, Slot

REQUEST, ACK, ECHO, DUMP = 0x1, 0x4, 0x8, 0x300
REPLACE, EXCL, CREATE = 0x100, 0x200, 0x400
NEW_QDISC, DEL_QDISC, GET_QDISC, NEW_CLASS, GET_CLASS = 36, 37, 38, 40, 42
ROOT, CLASS, LEAVES, LINE, AT_ROOT = (
    0x4E570000,
    0x4E570010,
    (0x4E58, 0x4E59),
    0x4E5A0000,
    0xFFFFFFFF,
)
KIND, OPTIONS = 1, 2
MAX32 = 0xFFFFFFFF


def attribute(kind: int, value: bytes | str | int) -> bytes:
    """One attribute, padded. Text is sent with its closing zero, numbers as 32 bit."""
    if isinstance(value, int):
        value = struct.pack("=I", value)
    elif isinstance(value, str):
        value = value.encode() + b"\0"
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | 0x8000, b"".join(attributes))


def message(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, REQUEST | flags, 0, 0) + body


def head(index: int, handle: int, parent: int) -> bytes:
    return struct.pack("=BxxxiIII", 0, index, handle, parent, 0)


def pace(rate_bits: int, overhead_bytes: int = 0) -> LinkPace:
    """A quarter of a millisecond may leave at once, from 2 Gbit/s on half a one; and always a frame."""
    rate = -(-rate_bits // 8)
    burst = max(1514, ceil(rate_bits / 8 * (0.25e-3 if rate_bits < 2e9 else 0.5e-3)))
    ticks = min(MAX32, max(1, round(burst * 1e9 / rate / 64)))
    return LinkPace(rate, ticks, overhead_bytes=overhead_bytes)


def add_root(index: int) -> bytes:
    init = attribute(2, struct.pack("=IIIII", 3, 10, 0x10, 0, 0))
    body = head(index, ROOT, AT_ROOT) + attribute(KIND, "htb") + nested(OPTIONS, init)
    return message(NEW_QDISC, ACK | CREATE | EXCL, body)


def add_class(index: int, setting: LinkPace) -> bytes:
    return message(NEW_CLASS, ACK | CREATE | EXCL, _class(index, setting))


def change_class(index: int, setting: LinkPace) -> bytes:
    return message(NEW_CLASS, ACK, _class(index, setting))


def _class(index: int, setting: LinkPace) -> bytes:
    charged = (setting.overhead_bytes, -1, setting.mpu_bytes)
    rate = struct.pack("=BBHhHI", 0, 1, *charged, min(setting.rate_bytes, MAX32))
    tail = struct.pack("=IIIII", setting.burst_ticks, setting.burst_ticks, 60_000, 0, 0)
    options = [attribute(1, rate + rate + tail)]
    if setting.rate_bytes >= MAX32:
        wide = struct.pack("=Q", setting.rate_bytes)
        options += [attribute(6, wide), attribute(7, wide)]
    return head(index, CLASS, ROOT) + attribute(KIND, "htb") + nested(OPTIONS, *options)


def add_leaf(index: int, leaf: int, limit_bytes: int) -> bytes:
    return message(NEW_QDISC, ACK | CREATE | REPLACE, _leaf(index, leaf, limit_bytes))


def change_leaf(index: int, leaf: int, limit_bytes: int) -> bytes:
    return message(NEW_QDISC, ACK, _leaf(index, leaf, limit_bytes))


def _leaf(index: int, leaf: int, limit_bytes: int) -> bytes:
    limit = attribute(OPTIONS, struct.pack("=I", limit_bytes))
    return head(index, leaf << 16, CLASS) + attribute(KIND, "bfifo") + limit


def delete_root(index: int, handle: int) -> bytes:
    return message(DEL_QDISC, ACK, head(index, handle, AT_ROOT))


def read_class(index: int) -> bytes:
    return message(GET_CLASS, ECHO, head(index, CLASS, ROOT))


def read_leaf(index: int, leaf: int) -> bytes:
    return message(GET_QDISC, ECHO, head(index, leaf << 16, CLASS))


def list_disciplines(index: int) -> bytes:
    return message(GET_QDISC, DUMP, head(index, 0, 0))


def add_line(index: int, state: NetemState) -> bytes:
    return message(NEW_QDISC, ACK | CREATE | EXCL, _line(index, state, with_table=True))


def change_line(index: int, state: NetemState, *, with_table: bool = True) -> bytes:
    return message(NEW_QDISC, ACK, _line(index, state, with_table))


def read_line(index: int) -> bytes:
    return message(GET_QDISC, ECHO, head(index, LINE, AT_ROOT))


def _line(index: int, state: NetemState, with_table: bool) -> bytes:
    options = attribute(OPTIONS, _options(state, with_table))
    return head(index, LINE, AT_ROOT) + attribute(KIND, "netem") + options


def _options(state: NetemState, with_table: bool) -> bytes:
    """All of a netem's options."""
    wanted = state.impairments
    random_loss = wanted.loss if isinstance(wanted.loss, (int, float)) else 0.0
    base = struct.pack(
        "=IIIIII",
        min(MAX32, wanted.delay_ns // 64),
        state.limit_packets,
        _share(random_loss),
        max(1, wanted.reorder_gap) if _share(wanted.reorder) else 0,
        _share(wanted.duplicate),
        min(MAX32, wanted.jitter_ns // 64),
    )
    slot = wanted.slot or Slot(0, 0)
    parts = [
        attribute(10, struct.pack("=q", wanted.delay_ns)),
        attribute(11, struct.pack("=q", wanted.jitter_ns)),
        _shares(1, wanted.delay_correlation, 0.0, wanted.duplicate_correlation),
        _shares(3, wanted.reorder, wanted.reorder_correlation),
        _shares(4, wanted.corrupt, wanted.corrupt_correlation),
        attribute(6, struct.pack("=IiIi", MAX32 if wanted.ordered else 0, 0, 0, 0)),
        *([attribute(8, struct.pack("=Q", 10**15))] if wanted.ordered else []),
        attribute(7, int(wanted.ecn)),
        attribute(12, struct.pack("=qqiiqq", slot.shortest_ns, slot.longest_ns, slot.packets, slot.bytes, 0, 0)),
        *_loss_model(wanted.loss),
    ]  # fmt: skip
    if with_table:
        parts.append(attribute(2, table(wanted.distribution)))
    if wanted.seed is not None:
        parts.append(attribute(14, struct.pack("=Q", wanted.seed)))
    return base + b"".join(parts)


def _loss_model(loss: float | GilbertElliott | FourState) -> list[bytes]:
    if isinstance(loss, FourState):
        # The kernel adds p13 and p14, and p31 and p32, in 32 bits: rounded up they would be nothing.
        p14, p32 = _share(loss.p14), _share(loss.p32)
        p13, p31 = min(_share(loss.p13), MAX32 - p14), min(_share(loss.p31), MAX32 - p32)
        chances = attribute(1, struct.pack("=5I", p13, p31, p32, p14, _share(loss.p23)))
    elif isinstance(loss, GilbertElliott):
        p, r, lost, good = map(_share, (loss.p, loss.r, loss.loss_bad, loss.loss_good))
        chances = attribute(2, struct.pack("=IIII", p, r, MAX32 - lost, good))
    else:
        return []
    return [nested(5, chances)]


def _shares(kind: int, *shares: float) -> bytes:
    return attribute(kind, struct.pack(f"={len(shares)}I", *map(_share, shares)))


def _share(share: float) -> int:
    return round(share * MAX32)
