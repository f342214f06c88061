"""Everything that shapes the links of one session: set up, kept for the next run, undone at the end."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from testbed.errors import LinkError, MachineError
from testbed.fabric.base import Cable, Interface
from testbed.links import devices
from testbed.links.end import ShapedEnd, Where
from testbed.links.netlink import KernelRefused, Netlink
from testbed.links.plan import ALIAS, ifb_name
from testbed.links.routes import SubnetRoute, default_congestion, set_route, shape_route
from testbed.links.wire import LinkSettings
from testbed.scenario.shape import End, Shape

Spot = tuple[str | None, int]
"""A device: its namespace and its index there."""


class Shaper:
    """Not thread-safe; a replay borrows ``ends`` while it runs."""

    def __init__(self) -> None:
        self.ends: dict[End, ShapedEnd] = {}
        self.shapes: dict[End, Shape] = {}
        self.segments = 0
        self._ifbs: dict[Spot, Spot] = {}
        self._segments_before: dict[Spot, int] = {}
        self._routes_before: dict[Spot, list[SubnetRoute]] = {}

    def prepare(
        self, cables: Mapping[str, Cable], shapes: Mapping[End, Shape], settings: LinkSettings
    ) -> dict[str, Any]:
        """Bring every end to its shape and check it. Returns what the kernel holds, read back.

        Raises LinkError for a link that is not as asked, MachineError for an unknown congestion control.
        """
        self.segments = settings.segments
        for spot in _talking(cables):
            self._limit_segments(spot, settings.segments)
            before = shape_route(*spot, settings.congestion, settings.rto_min_ms)
            self._routes_before.setdefault(spot, before)
        for end, shape in shapes.items():
            self._place(end, cables[end.link], settings.at.get(end.link, "nic"))
            self.ends[end].install(shape)
        self.shapes = dict(shapes)
        for end in set(self.ends) - set(shapes):
            self.ends.pop(end).remove()
        return {
            "links": [self._held(end, cables[end.link], settings) for end in shapes],
            "gso_max_segs": settings.segments,
            "rto_min_ms": settings.rto_min_ms,
        }

    def remove(self) -> list[str]:
        """Undo all of it; returns what could not be undone, in words."""
        steps: list[Callable[[], None]] = [end.remove for end in self.ends.values()]
        steps += [lambda spot=spot: _delete(spot) for spot in self._ifbs.values()]  # type: ignore[misc]
        steps += [
            lambda spot=spot, count=count: _set_segments(spot, count)  # type: ignore[misc]
            for spot, count in self._segments_before.items()
        ]
        steps += [
            lambda spot=spot, routes=routes: _restore(spot, routes)  # type: ignore[misc]
            for spot, routes in self._routes_before.items()
        ]
        failures = []
        for step in steps:
            try:
                step()
            except OSError as error:
                if error.errno not in (errno.ENODEV, errno.ENOENT, errno.ESRCH, errno.EINVAL):
                    failures.append(str(error))
        for held in (self.ends, self._ifbs, self._segments_before, self._routes_before):
            held.clear()
        return failures

    def _place(self, end: End, cable: Cable, at: str) -> None:
        """See to it that the end is shaped at the right device, and nowhere else."""
        where = self._where(end, cable, at)
        known = self.ends.get(end)
        if known is not None and known.where != where:
            known.remove()
        if known is None or known.where != where:
            self.ends[end] = ShapedEnd(end, where)

    def _where(self, end: End, cable: Cable, at: str) -> Where:
        if end.direction == "down":
            return _at(cable.port)
        if at == "nic":
            return _at(cable.nic)
        port = cable.port
        spot = (port.netns, port.index)
        if spot not in self._ifbs:
            self._ifbs[spot] = (port.netns, _make_ifb(end, port).index)
        return Where(port.netns, self._ifbs[spot][1], ifb_name(port.index), redirect=port.index)

    def _limit_segments(self, spot: Spot, segments: int) -> None:
        with Netlink(spot[0]) as netlink:
            before = devices.device(netlink, spot[1]).segments
            self._segments_before.setdefault(spot, before)
            devices.set_segments(netlink, spot[1], segments)
            held = devices.device(netlink, spot[1]).segments
        if held != segments:
            raise MachineError(
                f"device {spot[1]} in {spot[0] or 'the own namespace'} should take bundles of "
                f"{segments} frames, but the kernel holds {held}"
            )

    def _held(self, end: End, cable: Cable, settings: LinkSettings) -> dict[str, Any]:
        held = self.ends[end].verify(self.shapes[end])
        sender = cable.nic.netns if end.direction == "up" else cable.port.netns
        return {
            "link": end.link,
            "direction": end.direction,
            "at": settings.at.get(end.link, "nic") if end.direction == "up" else "network",
            **held,
            "gso_max_segs": settings.segments,
            "congestion": settings.congestion or default_congestion(sender),
        }


def _at(interface: Interface) -> Where:
    return Where(interface.netns, interface.index, interface.name)


def _talking(cables: Mapping[str, Cable]) -> Iterator[Spot]:
    """The devices that TCP sends through: every node's interface, and the switch's own."""
    bridges: set[Spot] = set()
    for cable in cables.values():
        yield cable.nic.netns, cable.nic.index
        with Netlink(cable.port.netns) as netlink:
            master = devices.device(netlink, cable.port.index).master
        if master:
            bridges.add((cable.port.netns, master))
    yield from bridges


def _make_ifb(end: End, port: Interface) -> devices.Device:
    name = ifb_name(port.index)
    with Netlink(port.netns) as netlink:
        made = devices.find(netlink, name)
        if made is not None and made.alias != ALIAS:
            raise LinkError(
                end.link,
                end.direction,
                asked=f"an intermediate device {name!r} for the network's queue",
                held="somebody else's device of that name",
            )
        made = made or devices.add_ifb(netlink, name)
        devices.set_alias(netlink, made.index, ALIAS)
        devices.set_up(netlink, made.index)
        return made


def _delete(spot: Spot) -> None:
    with Netlink(spot[0]) as netlink:
        devices.delete(netlink, spot[1])


def _set_segments(spot: Spot, segments: int) -> None:
    with Netlink(spot[0]) as netlink:
        devices.set_segments(netlink, spot[1], segments)


def _restore(spot: Spot, routes: list[SubnetRoute]) -> None:
    with Netlink(spot[0]) as netlink:
        for route in routes:
            with suppress(KernelRefused):
                set_route(netlink, route, route.congestion, route.rto_min_ms)
