"""The queueing tree of a link direction (an HTB root, one class, a ``bfifo`` leaf), and
``RootQdisc``: a device's root discipline, to which messages are sent, and which is removed in the
end. There are two kinds: the queue (``shaper.ShapedQueue``), and the delay line
(``netem_stage.NetemStage``).

Rates are bit/s outside and byte/s in messages; times inside the kernel's messages are ticks of 64
ns. The link layer is declared Ethernet, so that no rate table has to be sent.
"""

from __future__ import annotations

import errno
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE
from pyroute2.netlink.rtnl import (
    RTM_DELQDISC,
    RTM_GETQDISC,
    RTM_GETTCLASS,
    RTM_GETTFILTER,
    RTM_NEWQDISC,
    RTM_NEWTCLASS,
    RTM_NEWTFILTER,
    TC_H_INGRESS,
    TC_H_ROOT,
)
from pyroute2.netlink.rtnl.tcmsg import tcmsg
from pyroute2.netlink.rtnl.tcmsg.act_mirred import MIRRED_EACTIONS
from pyroute2.netlink.rtnl.tcmsg.common import tc_actions

from testbed.errors import LinkError
from testbed.links.tc import pyroute2_plugins  # noqa: F401 - registers what pyroute2 lacks
from testbed.links.tc.netlink import (
    Attribute,
    AttributeReader,
    Fields,
    NetlinkChannel,
    NetlinkMessage,
    encode,
    nest,
    tolerating,
    tree,
)
from testbed.links.tc.parameters import (
    CLASS_MINOR,
    LINE_HANDLE,
    QUANTUM_BYTES,
    ROOT,
    TICK_NS,
    LinkPace,
)
from testbed.scenario.link_state import LinkDirection

ADD, PUT = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
CHANGE = NLM_F_ACK
AT_ROOT = TC_H_ROOT
ROOT_HANDLE = ROOT << 16
CLASS = ROOT_HANDLE | CLASS_MINOR
ETHERNET = 1
"""The link layer of a rate, in a byte that pyroute2 takes for reserved: packets take as many bytes
as they have, and the kernel wants no table of them."""
MAX32 = 0xFFFFFFFF
"""From this rate on, byte/s, a class has attributes of 64 bits."""
_PARAMETERS = "TCA_OPTIONS.TCA_HTB_PARMS."
_COUNTERS = AttributeReader(
    tcmsg,
    "TCA_STATS2.TCA_STATS_BASIC.bytes",
    "TCA_STATS2.TCA_STATS_BASIC.packets",
    "TCA_STATS2.TCA_STATS_PKT64.value",
    "TCA_STATS2.TCA_STATS_QUEUE.qlen",
    "TCA_STATS2.TCA_STATS_QUEUE.backlog",
    "TCA_STATS2.TCA_STATS_QUEUE.drops",
    "TCA_XSTATS.tokens",
    "TCA_XSTATS.ctokens",
    f"{_PARAMETERS}rate",
    "TCA_OPTIONS.TCA_HTB_RATE64.value",
)
_SETTINGS = AttributeReader(
    tcmsg,
    f"{_PARAMETERS}rate",
    "TCA_OPTIONS.TCA_HTB_RATE64.value",
    f"{_PARAMETERS}buffer",
    f"{_PARAMETERS}rate_mpu",
    f"{_PARAMETERS}rate_overhead",
    f"{_PARAMETERS}ceil",
    "TCA_OPTIONS.TCA_HTB_CEIL64.value",
    f"{_PARAMETERS}cbuffer",
    f"{_PARAMETERS}quantum",
)
_LIMIT = AttributeReader(tcmsg, "TCA_KIND", "TCA_OPTIONS.limit")
_QDISC = AttributeReader(
    tcmsg,
    *("index", "TCA_KIND", "handle", "parent", "TCA_OPTIONS.limit"),
    *(f"TCA_OPTIONS.TCA_HTB_INIT.{name}" for name in ("defcls", "direct_pkts")),
)
_ACTION = "TCA_OPTIONS.TCA_U32_ACT.TCA_ACT_PRIO_1."
_REDIRECTS = AttributeReader(
    tcmsg,
    *(f"{_ACTION}TCA_ACT_OPTIONS.TCA_MIRRED_PARMS.{name}" for name in ("eaction", "ifindex")),
    *(
        f"{_ACTION}TCA_ACT_STATS.TCA_STATS_{name}"
        for name in ("BASIC.packets", "PKT64.value", "QUEUE.overlimits")
    ),
)


class ClassCounters(NamedTuple):
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

    pace: LinkPace
    ceil_bytes: int
    ceil_burst_ticks: int
    quantum_bytes: int


@dataclass(frozen=True, slots=True)
class Qdisc:
    """A queueing discipline as the kernel tells it. ``limit_bytes``: of a ``bfifo``."""

    kind: str
    handle: int
    parent: int
    limit_bytes: int | None = None
    default_minor: int | None = None
    direct_packets: int | None = None


def traffic_control(
    index: int, handle: int, parent: int, kind: str | None = None, options: Fields | None = None
) -> NetlinkMessage:
    """A message about a discipline or a class of the device ``index``."""
    attributes: list[Attribute] = [("TCA_KIND", kind)] if kind else []
    if options is not None:
        attributes.append(("TCA_OPTIONS", options))
    return NetlinkMessage(tcmsg, tree(*attributes, index=index, handle=handle, parent=parent))


def add_root(index: int) -> bytes:
    """Install the HTB root, whose unclassified traffic goes to our class."""
    init = {"version": 3, "rate2quantum": 10, "defcls": CLASS_MINOR}
    message = traffic_control(index, ROOT_HANDLE, AT_ROOT, "htb", tree(("TCA_HTB_INIT", init)))
    return encode(message, RTM_NEWQDISC, ADD)


def set_class(index: int, setting: LinkPace, flags: int = CHANGE) -> bytes:
    """Change our class in place (the queue and the debt stay), or make it (``ADD``).

    Every value is told: what is left out the kernel would set to something else.
    """
    rate, ticks = min(setting.rate_bytes, MAX32), setting.burst_ticks
    parameters: Fields = {"buffer": ticks, "cbuffer": ticks, "quantum": QUANTUM_BYTES}
    for which in ("rate", "ceil"):
        parameters |= {
            which: rate,
            f"{which}___reserved": ETHERNET,
            f"{which}_cell_align": -1,
            f"{which}_overhead": setting.overhead_bytes,
            f"{which}_mpu": setting.mpu_bytes,
        }
    options: list[Attribute] = [("TCA_HTB_PARMS", parameters)]
    if setting.rate_bytes >= MAX32:
        options += [(f"TCA_HTB_{which}64", setting.rate_bytes) for which in ("RATE", "CEIL")]
    message = traffic_control(index, CLASS, ROOT_HANDLE, "htb", tree(*options))
    return encode(message, RTM_NEWTCLASS, flags)


def set_leaf(index: int, leaf: int, limit_bytes: int, flags: int = CHANGE) -> bytes:
    """Change the queue's length in place (what waits stays), or put a new, empty queue in the place
    of the old one (``PUT``). ``leaf`` is its major handle."""
    message = traffic_control(index, leaf << 16, CLASS, "bfifo", {"limit": limit_bytes})
    return encode(message, RTM_NEWQDISC, flags)


def delete_root(index: int, handle: int = ROOT_HANDLE) -> bytes:
    """Remove a root with everything under it."""
    return encode(traffic_control(index, handle, AT_ROOT), RTM_DELQDISC, NLM_F_ACK)


def read_class(index: int) -> bytes:
    """Ask for the class. Echo: some kernels answer to listeners only."""
    return encode(traffic_control(index, CLASS, ROOT_HANDLE), RTM_GETTCLASS, NLM_F_ECHO)


def read_leaf(index: int, leaf: int) -> bytes:
    """Ask for the queue under our class."""
    return encode(traffic_control(index, leaf << 16, CLASS), RTM_GETQDISC, NLM_F_ECHO)


def decode_counters(answer: bytes) -> ClassCounters:
    """Counters out of the answer to ``read_class``."""
    size, packets, packets64, waiting, backlog, drops, tokens, ceil_tokens, rate, rate64 = (
        _COUNTERS(answer)
    )
    debt = max(0, -min(tokens, ceil_tokens)) * TICK_NS
    packets = packets if packets64 is None else packets64
    return ClassCounters(size, packets, backlog, waiting, drops, debt, rate64 or rate)


def decode_class(answer: bytes) -> HeldClass:
    """Settings out of the answer to ``read_class``."""
    rate, rate64, burst, mpu, overhead, ceil, ceil64, ceil_burst, quantum = _SETTINGS(answer)
    return HeldClass(
        LinkPace(rate64 or rate, burst, mpu, overhead), ceil64 or ceil, ceil_burst, quantum
    )


def decode_limit(answer: bytes) -> int:
    """The queue's length, bytes, out of the answer to ``read_leaf``; 0 of any other discipline."""
    kind, limit = _LIMIT(answer)
    return limit if kind == b"bfifo\0" else 0


def qdiscs(channel: NetlinkChannel, index: int) -> list[Qdisc]:
    """The disciplines of a device. Raises KernelRefused."""
    listed = map(_QDISC, channel.dump_raw(traffic_control(index, 0, 0), RTM_GETQDISC))
    # Some kernels list those of all devices.
    return [
        Qdisc(kind.rstrip(b"\0").decode(), *values) for at, kind, *values in listed if at == index
    ]


DEFAULT_ROOTS = {"noqueue", "pfifo_fast", "fq_codel", "mq"}
"""Roots that the kernel puts there by itself; any other with a handle is somebody's."""

_OURS = {("htb", ROOT_HANDLE), ("netem", LINE_HANDLE)}
_GONE = {errno.ENODEV, errno.ENOENT, errno.EINVAL, errno.EBADF}

_INGRESS = 0xFFFF0000
_EVERY_PROTOCOL, _PRIORITY = 0x0300, 10
_REDIRECT = MIRRED_EACTIONS["egress", "redirect"]
_ANY_PACKET = ("0x0/0x0+0",)
"""One key that matches whatever there is."""
_NEW = NLM_F_CREATE | NLM_F_EXCL


@dataclass(frozen=True, slots=True)
class QdiscDevice:
    """The device whose egress is used; ``redirect``: the device whose arrivals go through it."""

    netns: str | None
    index: int
    name: str
    redirect: int | None = None


class RootQdisc:
    """The root queueing discipline of a device, with a socket in its namespace."""

    handle: ClassVar[int]
    """The one that we give it: a root with another is somebody else's."""

    def __init__(self, end: LinkDirection, where: QdiscDevice) -> None:
        self.end, self.where = end, where
        self.installed = False
        self._led_in = False
        self._channel = NetlinkChannel(where.netns)

    def remove(self) -> None:
        """Take away what was installed and close; what has vanished with its device is no error."""
        with self._channel, ExitStack() as last_first:
            if self.installed:
                last_first.callback(
                    tolerating(*_GONE)(self.send), delete_root(self.where.index, self.handle)
                )
            # The redirect goes first: what arrives must not be sent to a device that has no queue
            # any more.
            if self.where.redirect is not None and self._led_in:
                undo = tolerating(*_GONE)(undo_redirect)
                last_first.callback(undo, self._channel, self.where.redirect)
            self.installed = self._led_in = False

    def send(self, *messages: bytes) -> None:
        """Have prepared messages carried out. Raises KernelRefused."""
        self._channel.send(*messages)

    def _make_room(self) -> None:
        """Remove a root of ours from an earlier run. Raises LinkError for any other."""
        root = self._root()
        if root is None:
            return
        if (root.kind, root.handle) in _OURS:
            self.send(delete_root(self.where.index, root.handle))
        elif root.handle and root.kind not in DEFAULT_ROOTS:
            raise self._mismatch(
                "a device without a queueing discipline of somebody else's",
                f"{root.kind} {root.handle >> 16:x}: on {self.where.name!r}",
            )

    def _lead_in(self) -> None:
        """Redirect arrivals through this device, if they are to be. Raises LinkError."""
        source = self.where.redirect
        if source is None:
            return
        with tolerating(errno.EEXIST):
            redirect(self._channel, source, self.where.index)
        to = [each.target for each in passed(self._channel, source)]
        if to != [self.where.index]:
            raise self._mismatch(
                f"what arrives at device {source} redirected to {self.where.name!r}",
                f"redirects to devices {to}" if to else "somebody else's discipline for arrivals",
            )
        self._led_in = True

    def _root(self) -> Qdisc | None:
        listed = qdiscs(self._channel, self.where.index)
        return next((qdisc for qdisc in listed if qdisc.parent == AT_ROOT), None)

    def _mismatch(self, requested: str, actual: str) -> LinkError:
        return LinkError(self.end.link, self.end.direction, requested=requested, actual=actual)


def redirect(channel: NetlinkChannel, index: int, target: int) -> None:
    """Send arrivals at device ``index`` through ``target``'s queue. Raises KernelRefused."""
    ingress = traffic_control(index, _INGRESS, TC_H_INGRESS, "ingress")
    channel.request(ingress, RTM_NEWQDISC, _NEW)
    channel.request(filter_to(index, target), RTM_NEWTFILTER, _NEW)


def filter_to(index: int, target: int) -> NetlinkMessage:
    """A filter that any packet passes, with the redirect as its action."""
    mirred = {"action": tc_actions["stolen"], "eaction": _REDIRECT, "ifindex": target}
    parameters = ("TCA_ACT_OPTIONS", tree(("TCA_MIRRED_PARMS", mirred)))
    action = nest("TCA_ACT_PRIO_1", ("TCA_ACT_KIND", "mirred"), parameters)
    options = tree(("TCA_U32_SEL", {"keys": _ANY_PACKET}), nest("TCA_U32_ACT", action))
    message = traffic_control(index, 0, _INGRESS, "u32", options)
    message.fields["info"] = _PRIORITY << 16 | _EVERY_PROTOCOL
    return message


def undo_redirect(channel: NetlinkChannel, index: int) -> None:
    """Let arriving traffic go its direct way again. Raises KernelRefused."""
    channel.request(traffic_control(index, _INGRESS, TC_H_INGRESS), RTM_DELQDISC)


class Passed(NamedTuple):
    """Counters of a redirect: packets that came, and those for which there was no room."""

    target: int
    packets: int
    refused: int


def passed(channel: NetlinkChannel, index: int) -> list[Passed]:
    """The redirects of arrivals at device ``index``. Raises KernelRefused."""
    filters = channel.dump_raw(traffic_control(index, 0, _INGRESS), RTM_GETTFILTER)
    return [
        Passed(target, packets if packets64 is None else packets64, refused)
        for action, target, packets, packets64, refused in map(_REDIRECTS, filters)
        if action == _REDIRECT
    ]
