"""What the kernel tells of a netem: its options, its counters, and whether that is what was asked."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import NamedTuple

from testbed.links import htb, netem
from testbed.links.netlink import attributes, number, text
from testbed.scenario.impairments import FourState, GilbertElliott, Impairments, Slot

_STATS2, _BASIC, _QUEUE, _PACKETS64 = 7, 1, 3, 8


class Held(NamedTuple):
    """A netem as the kernel tells it."""

    impairments: Impairments
    limit_packets: int


class LineCounters(NamedTuple):
    """A netem at one instant."""

    packets: int
    """Sent on; duplicates are counted, lost packets are not."""
    bytes: int
    lost: int
    """By the loss model (with ``ecn`` those marked instead count too), and any that found it full."""
    backlog_packets: int
    """On their way."""


def decode_counters(answer: bytes) -> LineCounters:
    """Counters out of the answer to ``read``."""
    stats = attributes(attributes(answer[36:])[_STATS2])
    size, packets = struct.unpack_from("=QI", stats[_BASIC])
    waiting, _, lost = struct.unpack_from("=III", stats[_QUEUE])
    packets = number(stats[_PACKETS64]) if _PACKETS64 in stats else packets
    return LineCounters(packets, size, lost, waiting)


def decode_answer(answer: bytes) -> Held | None:
    """Settings out of the answer to ``read``; None if that is no netem."""
    held = attributes(answer[36:])
    return decode(held[netem.OPTIONS]) if text(held.get(netem.KIND, b"")) == "netem" else None


def decode(chosen: bytes) -> Held:
    """What options mean. The table of delays is not looked at: ``distribution`` is always uniform."""
    latency, limit, loss, gap, duplicate, jitter = netem.BASE.unpack_from(chosen)
    found = attributes(chosen[netem.BASE.size :])
    delay_correlation, loss_correlation, duplicate_correlation = _read(found, netem.CORRELATIONS, 3)
    reorder, reorder_correlation = _read(found, netem.REORDER, 2)
    corrupt, corrupt_correlation = _read(found, netem.CORRUPT, 2)
    return Held(
        Impairments(
            delay_ns=_time(found.get(netem.LATENCY64), latency),
            jitter_ns=_time(found.get(netem.JITTER64), jitter),
            delay_correlation=delay_correlation,
            loss=_read_model(found.get(netem.LOSS), loss / netem.ALL),
            loss_correlation=loss_correlation,
            reorder=reorder,
            reorder_correlation=reorder_correlation,
            reorder_gap=gap,
            duplicate=duplicate / netem.ALL,
            duplicate_correlation=duplicate_correlation,
            corrupt=corrupt,
            corrupt_correlation=corrupt_correlation,
            slot=_read_slot(found.get(netem.SLOT)),
            ecn=bool(number(found.get(netem.ECN, b""))),
            ordered=number(found.get(netem.RATE, bytes(4))[:4]) > 0,
            seed=number(found[netem.SEED]) if netem.SEED in found else None,
        ),
        limit,
    )


def _read(found: dict[int, bytes], kind: int, count: int) -> tuple[float, ...]:
    return tuple(
        share / netem.ALL for share in struct.unpack(f"={count}I", found[kind][: 4 * count])
    )


def _time(wide_ns: bytes | None, ticks: int) -> int:
    return ticks * htb.TICK_NS if wide_ns is None else number(wide_ns)


def _read_model(nest: bytes | None, random_loss: float) -> float | GilbertElliott | FourState:
    models = attributes(nest or b"")
    if netem.FOUR_STATE in models:
        p13, p31, p32, p14, p23 = _read(models, netem.FOUR_STATE, 5)
        return FourState(p13, p31, p32, p23, p14)
    if netem.GILBERT_ELLIOTT in models:
        p, r, passed, good = struct.unpack("=IIII", models[netem.GILBERT_ELLIOTT])
        return GilbertElliott(
            p / netem.ALL, r / netem.ALL, (netem.ALL - passed) / netem.ALL, good / netem.ALL
        )
    return random_loss


def _read_slot(packed: bytes | None) -> Slot | None:
    shortest, longest, packets, size, _, _ = netem.SLOT_LAYOUT.unpack(packed or bytes(40))
    return Slot(shortest, longest, packets, size) if shortest or longest else None


def same(asked: Held, held: Held) -> bool:
    """Whether a kernel holds what was asked, as far as it tells (see ``netem``)."""
    wanted, found = asked.impairments, held.impairments
    seed = found.seed if wanted.seed is not None and found.seed is not None else None
    found = replace(found, distribution=wanted.distribution, seed=seed)
    wanted = replace(wanted, seed=wanted.seed if seed is not None else None)
    return netem.options(wanted, asked.limit_packets) == netem.options(found, held.limit_packets)
