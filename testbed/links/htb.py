"""The queueing tree of a link direction: an HTB root, one class, a ``bfifo`` leaf.

Rates are bit/s outside and byte/s in messages; times inside the kernel's messages are ticks of 64 ns.
The link layer is declared Ethernet, so that no rate table has to be sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE
from pyroute2.netlink.rtnl import (
    RTM_DELQDISC,
    RTM_GETQDISC,
    RTM_GETTCLASS,
    RTM_NEWQDISC,
    RTM_NEWTCLASS,
    TC_H_ROOT,
)
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from testbed.links import plugins
from testbed.links.channel import Channel
from testbed.links.messages import Attribute, Fields, Message, Reader, encode, tree
from testbed.links.plan import CLASS_MINOR, QUANTUM_BYTES, ROOT, TICK_NS, Pace

ADD, PUT = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
AT_ROOT = TC_H_ROOT
ROOT_HANDLE = ROOT << 16
CLASS = ROOT_HANDLE | CLASS_MINOR
_MAX32 = 0xFFFFFFFF
_PARAMETERS = "TCA_OPTIONS.TCA_HTB_PARMS."
_COUNTERS = Reader(
    tcmsg,
    "TCA_STATS2.TCA_STATS_BASIC.bytes", "TCA_STATS2.TCA_STATS_BASIC.packets", "TCA_STATS2.TCA_STATS_PKT64.value",
    "TCA_STATS2.TCA_STATS_QUEUE.qlen", "TCA_STATS2.TCA_STATS_QUEUE.backlog", "TCA_STATS2.TCA_STATS_QUEUE.drops",
    "TCA_XSTATS.tokens", "TCA_XSTATS.ctokens",
    f"{_PARAMETERS}rate", "TCA_OPTIONS.TCA_HTB_RATE64.value",
)  # fmt: skip
_SETTINGS = Reader(
    tcmsg,
    f"{_PARAMETERS}rate", "TCA_OPTIONS.TCA_HTB_RATE64.value", f"{_PARAMETERS}buffer",
    f"{_PARAMETERS}rate_mpu", f"{_PARAMETERS}rate_overhead",
    f"{_PARAMETERS}ceil", "TCA_OPTIONS.TCA_HTB_CEIL64.value", f"{_PARAMETERS}cbuffer", f"{_PARAMETERS}quantum",
)  # fmt: skip
_LIMIT = Reader(tcmsg, "TCA_KIND", "TCA_OPTIONS.limit")
_INDEX = Reader(tcmsg, "index")


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


def traffic_control(
    index: int, handle: int, parent: int, kind: str | None = None, options: Fields | None = None
) -> Message:
    """A message about a discipline or a class of the device ``index``."""
    attributes: list[Attribute] = [("TCA_KIND", kind)] if kind else []
    if options is not None:
        attributes.append(("TCA_OPTIONS", options))
    return Message(tcmsg, tree(*attributes, index=index, handle=handle, parent=parent))


def add_root(index: int) -> bytes:
    """Install the HTB root, whose unclassified traffic goes to our class."""
    init = {"version": 3, "rate2quantum": 10, "defcls": CLASS_MINOR}
    message = traffic_control(index, ROOT_HANDLE, AT_ROOT, "htb", tree(("TCA_HTB_INIT", init)))
    return encode(message, RTM_NEWQDISC, ADD)


def add_class(index: int, setting: Pace) -> bytes:
    """Make the class."""
    return encode(_class(index, setting), RTM_NEWTCLASS, ADD)


def change_class(index: int, setting: Pace) -> bytes:
    """Change the class in place; the queue and the debt stay."""
    return encode(_class(index, setting), RTM_NEWTCLASS, NLM_F_ACK)


def _class(index: int, setting: Pace) -> Message:
    """Our class, with every value: what is left out the kernel would set to something else."""
    rate, ticks = min(setting.rate_bytes, _MAX32), setting.burst_ticks
    parameters: Fields = {"buffer": ticks, "cbuffer": ticks, "quantum": QUANTUM_BYTES}
    for way in ("rate", "ceil"):
        parameters |= {
            way: rate,
            f"{way}_linklayer": plugins.ETHERNET,
            f"{way}_cell_align": -1,
            f"{way}_overhead": setting.overhead_bytes,
            f"{way}_mpu": setting.mpu_bytes,
        }
    options: list[Attribute] = [("TCA_HTB_PARMS", parameters)]
    if setting.rate_bytes >= _MAX32:
        options += [(f"TCA_HTB_{way}64", setting.rate_bytes) for way in ("RATE", "CEIL")]
    return traffic_control(index, CLASS, ROOT_HANDLE, "htb", tree(*options))


def add_leaf(index: int, leaf: int, limit_bytes: int) -> bytes:
    """Put a new, empty queue in the place of the old one; ``leaf`` is its major handle."""
    return encode(_leaf(index, leaf, limit_bytes), RTM_NEWQDISC, PUT)


def change_leaf(index: int, leaf: int, limit_bytes: int) -> bytes:
    """Change the queue's length in place; what waits stays."""
    return encode(_leaf(index, leaf, limit_bytes), RTM_NEWQDISC, NLM_F_ACK)


def _leaf(index: int, leaf: int, limit_bytes: int) -> Message:
    return traffic_control(index, leaf << 16, CLASS, "bfifo", {"limit": limit_bytes})


def delete_root(index: int, handle: int = ROOT_HANDLE) -> bytes:
    """Remove a root with everything under it."""
    return encode(traffic_control(index, handle, AT_ROOT), RTM_DELQDISC, NLM_F_ACK)


def read_class(index: int) -> bytes:
    """Ask for the class. Echo: some kernels answer to listeners only."""
    return encode(traffic_control(index, CLASS, ROOT_HANDLE), RTM_GETTCLASS, NLM_F_ECHO)


def read_leaf(index: int, leaf: int) -> bytes:
    """Ask for the queue under our class."""
    return encode(traffic_control(index, leaf << 16, CLASS), RTM_GETQDISC, NLM_F_ECHO)


def decode_counters(answer: bytes) -> Counters:
    """Counters out of the answer to ``read_class``."""
    size, packets, packets64, waiting, backlog, drops, tokens, ceil_tokens, rate, rate64 = (
        _COUNTERS(answer)
    )
    debt = max(0, -min(tokens, ceil_tokens)) * TICK_NS
    packets = packets if packets64 is None else packets64
    return Counters(size, packets, backlog, waiting, drops, debt, rate64 or rate)


def decode_class(answer: bytes) -> HeldClass:
    """Settings out of the answer to ``read_class``."""
    rate, rate64, burst, mpu, overhead, ceil, ceil64, ceil_burst, quantum = _SETTINGS(answer)
    return HeldClass(
        Pace(rate64 or rate, burst, mpu, overhead), ceil64 or ceil, ceil_burst, quantum
    )


def decode_limit(answer: bytes) -> int:
    """The queue's length, bytes, out of the answer to ``read_leaf``; 0 of any other discipline."""
    kind, limit = _LIMIT(answer)
    return limit if kind == b"bfifo\0" else 0


def qdiscs(channel: Channel, index: int) -> list[Qdisc]:
    """The disciplines of a device. Raises KernelRefused."""
    listed = channel.dump_raw(traffic_control(index, 0, 0), RTM_GETQDISC)
    # Some kernels list those of all devices.
    return [_qdisc(one) for one in listed if _INDEX(one) == (index,)]


def _qdisc(message: bytes) -> Qdisc:
    found = tcmsg(message)
    found.decode()
    kind, options = found.get_attr("TCA_KIND"), found.get_attr("TCA_OPTIONS")
    qdisc = Qdisc(kind, found["handle"], found["parent"])
    if kind == "htb":
        init = options.get_attr("TCA_HTB_INIT")
        return replace(qdisc, default_minor=init["defcls"], direct_packets=init["direct_pkts"])
    return replace(qdisc, limit_bytes=options["limit"]) if kind == "bfifo" else qdisc
