"""A device's root queueing discipline: whose it is, room for ours, and the way in for what arrives."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL
from pyroute2.netlink.rtnl import (
    RTM_DELQDISC,
    RTM_GETTFILTER,
    RTM_NEWQDISC,
    RTM_NEWTFILTER,
    TC_H_INGRESS,
)
from pyroute2.netlink.rtnl.tcmsg.act_mirred import MIRRED_EACTIONS
from pyroute2.netlink.rtnl.tcmsg.common import tc_actions

from testbed.errors import LinkError
from testbed.links import htb
from testbed.links.channel import Channel, tolerating
from testbed.links.messages import Message, tree
from testbed.links.plan import LINE_HANDLE
from testbed.scenario.shape import End

DEFAULT_ROOTS = {"noqueue", "pfifo_fast", "fq_codel", "mq"}
"""Roots that the kernel puts there by itself; any other with a handle is somebody's."""

_OURS = {("htb", htb.ROOT_HANDLE), ("netem", LINE_HANDLE)}
_GONE = {errno.ENODEV, errno.ENOENT, errno.EINVAL, errno.EBADF}

_INGRESS = 0xFFFF0000
_EVERY_PROTOCOL, _PRIORITY = 0x0300, 10
_REDIRECT = MIRRED_EACTIONS["egress", "redirect"]
_ANY_PACKET = ("0x0/0x0+0",)
"""One key that matches whatever there is."""
_NEW = NLM_F_CREATE | NLM_F_EXCL


@dataclass(frozen=True, slots=True)
class Where:
    """The device whose egress is used; ``redirect``: the device whose arrivals go through it."""

    netns: str | None
    index: int
    name: str
    redirect: int | None = None


class Rooted:
    """What is the root of a device. Holds a socket in the device's namespace for as long as it lives."""

    def __init__(self, end: End, where: Where) -> None:
        self.end, self.where = end, where
        self.installed = False
        self._led_in = False
        self._channel = Channel(where.netns)

    def remove(self) -> None:
        """Take away what was installed and close; what has vanished with its device is no error."""
        try:
            # The redirect first: what arrives must not be sent to a device that has no queue any more.
            if self.where.redirect is not None and self._led_in:
                with tolerating(*_GONE):
                    undo_redirect(self._channel, self.where.redirect)
            if self.installed:
                with tolerating(*_GONE):
                    self.send(self._deletion())
        finally:
            self.installed = self._led_in = False
            self._channel.close()

    def send(self, *messages: bytes) -> None:
        """Have prepared messages carried out. Raises KernelRefused."""
        self._channel.send(*messages)

    def _deletion(self) -> bytes:
        """The message that removes it."""
        raise NotImplementedError

    def _make_room(self) -> None:
        """Remove a root of ours that an earlier run left. Raises LinkError for one that is not ours."""
        root = self._root()
        if root is None:
            return
        if (root.kind, root.handle) in _OURS:
            self.send(htb.delete_root(self.where.index, root.handle))
        elif root.handle and root.kind not in DEFAULT_ROOTS:
            raise self._mismatch(
                "a device without a queueing discipline of somebody else's",
                f"{root.kind} {root.handle >> 16:x}: on {self.where.name!r}",
            )

    def _lead_in(self) -> None:
        """Have arrivals go through this device, where they are to. Raises KernelRefused and LinkError."""
        source = self.where.redirect
        if source is None:
            return
        with tolerating(errno.EEXIST):
            redirect(self._channel, source, self.where.index)
        to = [one.target for one in passed(self._channel, source)]
        if to != [self.where.index]:
            raise self._mismatch(
                f"what arrives at device {source} redirected to {self.where.name!r}",
                f"redirects to devices {to}" if to else "somebody else's discipline for arrivals",
            )
        self._led_in = True

    def _qdiscs(self) -> list[htb.Qdisc]:
        return htb.qdiscs(self._channel, self.where.index)

    def _root(self) -> htb.Qdisc | None:
        return next((qdisc for qdisc in self._qdiscs() if qdisc.parent == htb.AT_ROOT), None)

    def _mismatch(self, asked: str, held: str) -> LinkError:
        return LinkError(self.end.link, self.end.direction, asked=asked, held=held)


def redirect(channel: Channel, index: int, target: int) -> None:
    """Send all that arrives at device ``index`` through ``target``'s queue. Raises KernelRefused."""
    ingress = htb.traffic_control(index, _INGRESS, TC_H_INGRESS, "ingress")
    channel.request(ingress, RTM_NEWQDISC, _NEW)
    channel.request(filter_to(index, target), RTM_NEWTFILTER, _NEW)


def filter_to(index: int, target: int) -> Message:
    """A filter that any packet passes, with the redirect as its action."""
    mirred = {"action": tc_actions["stolen"], "eaction": _REDIRECT, "ifindex": target}
    action = tree(
        ("TCA_ACT_KIND", "mirred"), ("TCA_ACT_OPTIONS", tree(("TCA_MIRRED_PARMS", mirred)))
    )
    options = tree(
        ("TCA_U32_SEL", {"keys": _ANY_PACKET}), ("TCA_U32_ACT", tree(("TCA_ACT_PRIO_1", action)))
    )
    message = htb.traffic_control(index, 0, _INGRESS, "u32", options)
    message.fields["info"] = _PRIORITY << 16 | _EVERY_PROTOCOL
    return message


def undo_redirect(channel: Channel, index: int) -> None:
    """Let arriving traffic go its direct way again. Raises KernelRefused."""
    channel.request(htb.traffic_control(index, _INGRESS, TC_H_INGRESS), RTM_DELQDISC)


class Passed(NamedTuple):
    """What a redirect has seen: packets that came, and those for which the other device had no room."""

    target: int
    packets: int
    refused: int


def passed(channel: Channel, index: int) -> list[Passed]:
    """The redirects of what arrives at device ``index``, with their counters. Raises KernelRefused."""
    filters = channel.dump(htb.traffic_control(index, 0, _INGRESS), RTM_GETTFILTER)
    return [one for found in filters for one in _redirects(found)]


def _redirects(found: Any) -> Iterator[Passed]:
    actions = found.get_nested("TCA_OPTIONS", "TCA_U32_ACT")
    for _, action in actions["attrs"] if actions is not None else ():
        parameters = action.get_nested("TCA_ACT_OPTIONS", "TCA_MIRRED_PARMS")
        if action.get_attr("TCA_ACT_KIND") == "mirred" and parameters["eaction"] == _REDIRECT:
            statistics = action.get_attr("TCA_ACT_STATS")
            packets = statistics.get_attr("TCA_STATS_PKT64")
            if packets is None:
                packets = statistics.get_attr("TCA_STATS_BASIC")["packets"]
            refused = statistics.get_attr("TCA_STATS_QUEUE")["overlimits"]
            yield Passed(parameters["ifindex"], packets, refused)
