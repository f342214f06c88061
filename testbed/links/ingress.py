"""Queueing what arrives: everything that comes in at a device is redirected to an intermediate one."""

from __future__ import annotations

import struct

from testbed.links.htb import NEW_QDISC
from testbed.links.netlink import CREATE, EXCL, Netlink, attribute, nested

_INGRESS, _INGRESS_PARENT, _FILTER_PARENT = 0xFFFF0000, 0xFFFFFFF1, 0xFFFF0000
_NEW_FILTER, _DEL_QDISC = 44, 37
_KIND, _OPTIONS = 1, 2
_U32_SELECTOR, _U32_ACTIONS = 5, 7
_MIRRED_PARAMETERS, _REDIRECT_OUT, _STOLEN = 2, 1, 4
_EVERY_PROTOCOL, _PRIORITY = 0x0300, 10
_TC = struct.Struct("=BxxxiIII")


def redirect(netlink: Netlink, index: int, target: int) -> None:
    """Send all that arrives at device ``index`` through ``target``'s queue. Raises KernelRefused."""
    head = _TC.pack(0, index, _INGRESS, _INGRESS_PARENT, 0)
    netlink.request(NEW_QDISC, CREATE | EXCL, head + attribute(_KIND, "ingress"))
    head = _TC.pack(0, index, 0, _FILTER_PARENT, _PRIORITY << 16 | _EVERY_PROTOCOL)
    netlink.request(_NEW_FILTER, CREATE | EXCL, head + attribute(_KIND, "u32") + _match_all(target))


def undo_redirect(netlink: Netlink, index: int) -> None:
    """Let arriving traffic go its direct way again. Raises KernelRefused."""
    netlink.request(_DEL_QDISC, 0, _TC.pack(0, index, _INGRESS, _INGRESS_PARENT, 0))


def _match_all(target: int) -> bytes:
    """A u32 filter whose one key matches any packet, with the redirect as its action."""
    terminal_one_key = struct.pack("=BBBxHHHhhI", 1, 0, 1, 0, 0, 0, 0, 0, 0)
    any_word_at_0 = struct.pack("=IIii", 0, 0, 0, 0)
    mirred = struct.pack("=IIiiiII", 0, 0, _STOLEN, 0, 0, _REDIRECT_OUT, target)
    action = nested(1, attribute(1, "mirred"), nested(2, attribute(_MIRRED_PARAMETERS, mirred)))
    return nested(
        _OPTIONS,
        attribute(_U32_SELECTOR, terminal_one_key + any_word_at_0),
        nested(_U32_ACTIONS, action),
    )
