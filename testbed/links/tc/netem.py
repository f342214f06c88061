"""A netem with every option of the kernel's, always all of them; and what the kernel tells of one.

A change of a netem merges: of what is left out some goes back to nothing and some stays, so
everything is sent every time, zeros too. Only the table of delays may be left out when it is the
one that is held.

What comes back is what was sent, but for this: shares are counted in 2**-32, times of kernels
without 64-bit ones in ticks of 64 ns, the table of delays is never told, and the seed only by
kernels since 6.6.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from pyroute2.netlink import NLM_F_ECHO
from pyroute2.netlink.rtnl import RTM_GETQDISC, RTM_NEWQDISC
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.links.tc.htb import AT_ROOT, CHANGE, traffic_control
from testbed.links.tc.netlink import (
    Attribute,
    AttributeReader,
    Fields,
    encode,
    tree,
)
from testbed.links.tc.parameters import LINE_HANDLE, ORDER_BYTES_S, TICK_NS, table
from testbed.scenario.link_state import FourState, GilbertElliott, Impairments, Slot

ALL = _MAX32 = 0xFFFFFFFF
"""The kernel's number for a share of 1."""

_OPTIONS = "TCA_OPTIONS."
_LOSS = f"{_OPTIONS}TCA_NETEM_LOSS."
_FOUR_STATES = ("p13", "p31", "p32", "p23", "p14")
_TWO_STATES = ("p", "r", "h", "k1")
_SLOT = {
    "min_delay": "shortest_ns",
    "max_delay": "longest_ns",
    "max_packets": "packets",
    "max_bytes": "bytes",
}
_SHARES = {
    ("TCA_NETEM_CORR", "delay_corr"): "delay_correlation",
    ("TCA_NETEM_CORR", "dup_corr"): "duplicate_correlation",
    ("TCA_NETEM_REORDER", "prob_reorder"): "reorder",
    ("TCA_NETEM_REORDER", "corr_reorder"): "reorder_correlation",
    ("TCA_NETEM_CORRUPT", "prob_corrupt"): "corrupt",
    ("TCA_NETEM_CORRUPT", "corr_corrupt"): "corrupt_correlation",
}
"""The share of ``Impairments`` in a field of an attribute, keyed by attribute and field."""
_HELD = AttributeReader(
    tcmsg,
    "TCA_KIND",
    *(_OPTIONS + name for name in ("delay", "limit", "loss", "gap", "duplicate", "jitter")),
    *(f"{_OPTIONS}TCA_NETEM_{name}64.value" for name in ("LATENCY", "JITTER")),
    f"{_OPTIONS}TCA_NETEM_RATE.rate",
    *(f"{_OPTIONS}TCA_NETEM_{name}.value" for name in ("ECN", "PRNG_SEED")),
    *(f"{_OPTIONS}{attribute}.{field}" for attribute, field in _SHARES),
)
_MODEL = AttributeReader(
    tcmsg,
    *(f"{_LOSS}NETEM_LOSS_GI.{name}" for name in _FOUR_STATES),
    *(f"{_LOSS}NETEM_LOSS_GE.{name}" for name in _TWO_STATES),
    *(f"{_OPTIONS}TCA_NETEM_SLOT.{name}" for name in _SLOT),
)
_COUNTERS = AttributeReader(
    tcmsg,
    *(f"TCA_STATS2.TCA_STATS_{name}" for name in ("BASIC.packets", "PKT64.value", "BASIC.bytes")),
    *(f"TCA_STATS2.TCA_STATS_QUEUE.{name}" for name in ("drops", "qlen")),
)


class NetemState(NamedTuple):
    """A netem as the kernel is told, or tells it."""

    impairments: Impairments
    limit_packets: int


class LineCounters(NamedTuple):
    """A netem at one instant."""

    packets: int
    """Packets sent on; duplicates are counted, lost packets are not."""
    bytes: int
    lost: int
    """Packets lost by the loss model (or, with ``ecn``, marked), and any that found it full."""
    backlog_packets: int
    """Packets on their way."""


def set_line(
    index: int, state: NetemState, flags: int = CHANGE, *, with_table: bool = True
) -> bytes:
    """Change it in place (packets on their way keep their times), or install it as the root of a
    device (``ADD``)."""
    options = _options(state, with_table)
    return encode(
        traffic_control(index, LINE_HANDLE, AT_ROOT, "netem", options), RTM_NEWQDISC, flags
    )


def read(index: int) -> bytes:
    """Ask for it."""
    return encode(traffic_control(index, LINE_HANDLE, AT_ROOT), RTM_GETQDISC, NLM_F_ECHO)


def _options(state: NetemState, with_table: bool) -> Fields:
    """All of a netem's options."""
    chosen = state.impairments
    random_loss = chosen.loss if isinstance(chosen.loss, (int, float)) else 0.0
    slot = chosen.slot or Slot(0, 0)
    attributes: list[Attribute] = [
        ("TCA_NETEM_LATENCY64", chosen.delay_ns),
        ("TCA_NETEM_JITTER64", chosen.jitter_ns),
        *_chances(chosen),
        ("TCA_NETEM_RATE", {"rate": _MAX32 if chosen.ordered else 0}),
        *([("TCA_NETEM_RATE64", ORDER_BYTES_S)] if chosen.ordered else []),
        ("TCA_NETEM_ECN", int(chosen.ecn)),
        ("TCA_NETEM_SLOT", {field: getattr(slot, name) for field, name in _SLOT.items()}),
        *_loss_model(chosen.loss),
        *([("TCA_NETEM_DELAY_DIST", table(chosen.distribution))] if with_table else []),
        *([("TCA_NETEM_PRNG_SEED", chosen.seed)] if chosen.seed is not None else []),
    ]
    return tree(
        *attributes,
        delay=_ticks(chosen.delay_ns),
        limit=state.limit_packets,
        loss=_share(random_loss),
        gap=max(1, chosen.reorder_gap) if _share(chosen.reorder) else 0,
        duplicate=_share(chosen.duplicate),
        jitter=_ticks(chosen.jitter_ns),
    )


def _chances(chosen: Impairments) -> list[Attribute]:
    chances: dict[str, Fields] = {}
    for (attribute, field), name in _SHARES.items():
        chances.setdefault(attribute, {})[field] = _share(getattr(chosen, name))
    return list(chances.items())


def _loss_model(loss: float | GilbertElliott | FourState) -> list[Attribute]:
    if isinstance(loss, FourState):
        # The kernel adds p13 and p14, and p31 and p32, in 32 bits: rounded up they would be
        # nothing.
        p14, p32 = _share(loss.p14), _share(loss.p32)
        p13, p31 = min(_share(loss.p13), ALL - p14), min(_share(loss.p31), ALL - p32)
        numbers = (p13, p31, p32, _share(loss.p23), p14)
        chances = ("NETEM_LOSS_GI", dict(zip(_FOUR_STATES, numbers, strict=True)))
    elif isinstance(loss, GilbertElliott):
        # The kernel wants to know what the bad state lets pass.
        p, r, lost, good = map(_share, (loss.p, loss.r, loss.loss_bad, loss.loss_good))
        passed = dict(zip(_TWO_STATES, (p, r, ALL - lost, good), strict=True))
        chances = ("NETEM_LOSS_GE", passed)
    else:
        return []
    return [("TCA_NETEM_LOSS", tree(chances))]


def _share(share: float) -> int:
    return round(share * ALL)


def _ticks(time_ns: int) -> int:
    return min(_MAX32, time_ns // TICK_NS)


def decode_counters(answer: bytes) -> LineCounters:
    """Counters out of the answer to ``read``."""
    packets, packets64, size, lost, waiting = _COUNTERS(answer)
    return LineCounters(packets if packets64 is None else packets64, size, lost, waiting)


def decode(answer: bytes) -> NetemState | None:
    """Settings in the answer to ``read``; None: no netem. ``distribution`` is uniform."""
    kind, delay, limit, loss, gap, duplicate, jitter, delay64, jitter64, *others = _HELD(answer)
    if kind != b"netem\0":
        return None
    rate, ecn, seed, *shares = others
    model = _MODEL(answer)
    impairments = Impairments(
        delay_ns=delay * TICK_NS if delay64 is None else delay64,
        jitter_ns=jitter * TICK_NS if jitter64 is None else jitter64,
        loss=_read_model(model[:5], model[5:9], loss / ALL),
        reorder_gap=gap,
        duplicate=duplicate / ALL,
        slot=Slot(*model[9:]) if model[9] or model[10] else None,
        ecn=bool(ecn),
        ordered=bool(rate),
        seed=seed,
        **{name: share / ALL for name, share in zip(_SHARES.values(), shares, strict=True)},
    )
    return NetemState(impairments, limit)


def _read_model(
    four: tuple[Any, ...], two: tuple[Any, ...], random_loss: float
) -> float | GilbertElliott | FourState:
    if four[0] is not None:
        return FourState(*(share / ALL for share in four))
    if two[0] is not None:
        p, r, passed, good = two
        return GilbertElliott(p / ALL, r / ALL, (ALL - passed) / ALL, good / ALL)
    return random_loss


def same(requested: NetemState, actual: NetemState) -> bool:
    """Return whether a kernel holds what it was told, as far as it tells."""
    wanted, real = requested.impairments, actual.impairments
    told_seed = None not in (wanted.seed, real.seed)
    real = replace(real, distribution=wanted.distribution, seed=real.seed if told_seed else None)
    wanted = replace(wanted, seed=wanted.seed if told_seed else None)
    states = requested._replace(impairments=wanted), actual._replace(impairments=real)
    first, second = (_options(state, with_table=False) for state in states)
    return first == second
