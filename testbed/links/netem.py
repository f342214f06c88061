"""Encoding and decoding of netem: every option of the kernel's, always all of them.

A change of a netem merges: of what is left out some goes back to nothing and some stays, so everything is
sent every time, zeros too. Only the table of delays may be left out when it is the one that is held.

What comes back is what was sent, but for this: shares are counted in 2**-32, times of kernels without 64-bit
ones in ticks of 64 ns, the table of delays is never told, and the seed only by kernels since 6.6.
"""

from __future__ import annotations

import struct
from math import ceil

from testbed.links import htb
from testbed.links.delays import table
from testbed.links.netlink import ACK, CREATE, ECHO, EXCL, attribute, message, nested
from testbed.links.plan import LINE
from testbed.scenario.impairments import FourState, GilbertElliott, Impairments, Slot

LINE_HANDLE = LINE << 16
ORDER_BYTES_S = 10**15
"""A rate at which no packet takes any time. A netem with a rate sends packets in the order in which they
came; without one it sorts them by the time at which each is due."""

FEWEST_PACKETS, MOST_PACKETS, SMALLEST_FRAME = 1000, 1 << 31, 64

KIND, OPTIONS = 1, 2
CORRELATIONS, TABLE, REORDER, CORRUPT, LOSS, RATE = 1, 2, 3, 4, 5, 6
ECN, RATE64, LATENCY64, JITTER64, SLOT, SEED = 7, 8, 10, 11, 12, 14
FOUR_STATE, GILBERT_ELLIOTT = 1, 2
ALL = 0xFFFFFFFF
"""What a share of 1 is to the kernel."""

BASE = struct.Struct("=IIIIII")
SLOT_LAYOUT = struct.Struct("=qqiiqq")
_RATE_LAYOUT = struct.Struct("=IiIi")
_MAX32 = 0xFFFFFFFF


def limit_packets(rate_bits: int, queue_bytes: int, impairments: Impairments) -> int:
    """A length at which a delay line never fills up, in packets: a power of two, or 1000 at least.

    So many packets are on their way at most: what a rate brings in the longest delay, and a queue's worth
    that came at once, all in frames of the smallest size; twice that if there are duplicates.
    """
    slot_ns = impairments.slot.longest_ns if impairments.slot else 0
    longest_s = (impairments.delay_ns + 4 * impairments.jitter_ns + slot_ns) / 1e9
    packets = (rate_bits / 8 * longest_s + queue_bytes) / SMALLEST_FRAME
    packets *= 2 if impairments.duplicate else 1
    return max(FEWEST_PACKETS, min(MOST_PACKETS, 1 << ceil(packets).bit_length()))


def options(impairments: Impairments, limit: int, *, with_table: bool = True) -> bytes:
    """All of a netem's options."""
    random_loss = impairments.loss if isinstance(impairments.loss, (int, float)) else 0.0
    gap = max(1, impairments.reorder_gap) if _share(impairments.reorder) else 0
    delay, jitter = impairments.delay_ns, impairments.jitter_ns
    base = BASE.pack(
        _ticks(delay),
        limit,
        _share(random_loss),
        gap,
        _share(impairments.duplicate),
        _ticks(jitter),
    )
    parts = [
        attribute(LATENCY64, struct.pack("=q", delay)),
        attribute(JITTER64, struct.pack("=q", jitter)),
        *_chances(impairments),
        *_order(impairments.ordered),
        attribute(ECN, int(impairments.ecn)),
        _slot(impairments.slot or Slot(0, 0)),
        *_loss_model(impairments.loss),
    ]
    if with_table:
        parts.append(attribute(TABLE, table(impairments.distribution)))
    if impairments.seed is not None:
        parts.append(attribute(SEED, struct.pack("=Q", impairments.seed)))
    return base + b"".join(parts)


def _chances(impairments: Impairments) -> list[bytes]:
    return [
        _shares(
            CORRELATIONS,
            impairments.delay_correlation,
            impairments.loss_correlation,
            impairments.duplicate_correlation,
        ),
        _shares(REORDER, impairments.reorder, impairments.reorder_correlation),
        _shares(CORRUPT, impairments.corrupt, impairments.corrupt_correlation),
    ]


def _order(kept: bool) -> list[bytes]:
    if not kept:
        return [attribute(RATE, _RATE_LAYOUT.pack(0, 0, 0, 0))]
    rate = attribute(RATE, _RATE_LAYOUT.pack(_MAX32, 0, 0, 0))
    return [rate, attribute(RATE64, struct.pack("=Q", ORDER_BYTES_S))]


def _slot(slot: Slot) -> bytes:
    packed = SLOT_LAYOUT.pack(slot.shortest_ns, slot.longest_ns, slot.packets, slot.bytes, 0, 0)
    return attribute(SLOT, packed)


def _loss_model(loss: float | GilbertElliott | FourState) -> list[bytes]:
    if isinstance(loss, FourState):
        # The kernel adds p13 and p14, and p31 and p32, in 32 bits: rounded up they would be nothing.
        p14, p32 = _share(loss.p14), _share(loss.p32)
        p13, p31 = min(_share(loss.p13), ALL - p14), min(_share(loss.p31), ALL - p32)
        chances = attribute(FOUR_STATE, struct.pack("=5I", p13, p31, p32, p14, _share(loss.p23)))
    elif isinstance(loss, GilbertElliott):
        # The kernel wants to know what the bad state lets pass.
        numbers = map(_share, (loss.p, loss.r, loss.loss_bad, loss.loss_good))
        p, r, lost, good = numbers
        chances = attribute(GILBERT_ELLIOTT, struct.pack("=IIII", p, r, ALL - lost, good))
    else:
        return []
    return [nested(LOSS, chances)]


def _shares(kind: int, *shares: float) -> bytes:
    return attribute(kind, struct.pack(f"={len(shares)}I", *map(_share, shares)))


def _share(share: float) -> int:
    return round(share * ALL)


def _ticks(time_ns: int) -> int:
    return min(_MAX32, time_ns // htb.TICK_NS)


def body(index: int, chosen: bytes) -> bytes:
    """A netem with ``options`` as the root of a device."""
    head = htb.head(index, LINE_HANDLE, htb.AT_ROOT)
    return head + attribute(KIND, "netem") + attribute(OPTIONS, chosen)


def add(index: int, chosen: bytes) -> tuple[int, int, bytes]:
    """Arguments of ``Netlink.request`` that install it."""
    return htb.NEW_QDISC, CREATE | EXCL, body(index, chosen)


def change(index: int, chosen: bytes) -> bytes:
    """A prepared message that changes it in place; packets on their way keep their times."""
    return message(htb.NEW_QDISC, ACK, body(index, chosen))


def read(index: int) -> bytes:
    """A prepared message that asks for it."""
    return message(htb.GET_QDISC, ECHO, htb.head(index, LINE_HANDLE, htb.AT_ROOT))
