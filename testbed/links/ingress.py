"""Queueing what arrives: everything that comes in at a device is redirected to an intermediate one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from testbed.links.htb import DEL_QDISC, NEW_QDISC, head
from testbed.links.netlink import (
    CREATE,
    EXCL,
    Netlink,
    attribute,
    attributes,
    nested,
    number,
    text,
)

_INGRESS, _INGRESS_PARENT, _FILTER_PARENT = 0xFFFF0000, 0xFFFFFFF1, 0xFFFF0000
_NEW_FILTER, _GET_FILTER = 44, 46
_KIND, _OPTIONS = 1, 2
_U32_SELECTOR, _U32_ACTIONS = 5, 7
_ACTION_KIND, _ACTION_OPTIONS, _ACTION_STATS = 1, 2, 4
_BASIC, _QUEUE, _PACKETS64 = 1, 3, 8
_MIRRED_PARAMETERS, _REDIRECT_OUT, _STOLEN = 2, 1, 4
_EVERY_PROTOCOL, _PRIORITY = 0x0300, 10
_MIRRED = struct.Struct("=IIiiiII")


def redirect(netlink: Netlink, index: int, target: int) -> None:
    """Send all that arrives at device ``index`` through ``target``'s queue. Raises KernelRefused."""
    ingress = head(index, _INGRESS, _INGRESS_PARENT)
    netlink.request(NEW_QDISC, CREATE | EXCL, ingress + attribute(_KIND, "ingress"))
    body = struct.pack("=BxxxiIII", 0, index, 0, _FILTER_PARENT, _PRIORITY << 16 | _EVERY_PROTOCOL)
    netlink.request(_NEW_FILTER, CREATE | EXCL, body + attribute(_KIND, "u32") + _match_all(target))


def undo_redirect(netlink: Netlink, index: int) -> None:
    """Let arriving traffic go its direct way again. Raises KernelRefused."""
    netlink.request(DEL_QDISC, 0, head(index, _INGRESS, _INGRESS_PARENT))


class Passed(NamedTuple):
    """What a redirect has seen: packets that came, and those for which the other device had no room."""

    target: int
    packets: int
    refused: int


def passed(netlink: Netlink, index: int) -> list[Passed]:
    """The redirects of what arrives at device ``index``, with their counters. Raises KernelRefused."""
    filters = netlink.dump(_GET_FILTER, head(index, 0, _FILTER_PARENT))
    return [redirect for body in filters for redirect in _redirects(attributes(body[20:]))]


def _redirects(held: dict[int, bytes]) -> Iterator[Passed]:
    actions = attributes(held.get(_OPTIONS, b"")).get(_U32_ACTIONS, b"")
    for described in attributes(actions).values():
        action = attributes(described)
        parameters = attributes(action.get(_ACTION_OPTIONS, b"")).get(_MIRRED_PARAMETERS)
        if text(action.get(_ACTION_KIND, b"")) == "mirred" and parameters is not None:
            *_, way, target = _MIRRED.unpack_from(parameters)
            if way == _REDIRECT_OUT:
                yield Passed(target, *_counted(attributes(action[_ACTION_STATS])))


def _counted(stats: dict[int, bytes]) -> tuple[int, int]:
    _, packets = struct.unpack_from("=QI", stats[_BASIC])
    *_, refused = struct.unpack_from("=IIIII", stats[_QUEUE])
    return number(stats[_PACKETS64]) if _PACKETS64 in stats else packets, refused


def _match_all(target: int) -> bytes:
    """A u32 filter whose one key matches any packet, with the redirect as its action."""
    terminal_one_key = struct.pack("=BBBxHHHhhI", 1, 0, 1, 0, 0, 0, 0, 0, 0)
    any_word_at_0 = struct.pack("=IIii", 0, 0, 0, 0)
    mirred = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _REDIRECT_OUT, target)
    action = nested(
        1,
        attribute(_ACTION_KIND, "mirred"),
        nested(_ACTION_OPTIONS, attribute(_MIRRED_PARAMETERS, mirred)),
    )
    return nested(
        _OPTIONS,
        attribute(_U32_SELECTOR, terminal_one_key + any_word_at_0),
        nested(_U32_ACTIONS, action),
    )
