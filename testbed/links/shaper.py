"""Everything that shapes the links of one session: set up, kept for the next run, undone at the end."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from testbed.errors import LinkError, MachineError
from testbed.fabric.base import Cable
from testbed.links import devices
from testbed.links.channel import Channel, KernelRefused, undone
from testbed.links.end import ShapedEnd
from testbed.links.line import DelayLine
from testbed.links.namespaces import default_congestion, remembers_connections
from testbed.links.plan import ALIAS
from testbed.links.probe import needs_of_lines, probe
from testbed.links.root import Where
from testbed.links.routes import SubnetRoute, set_route, shape_route
from testbed.links.wire import LinkSettings
from testbed.links.wiring import Hop, Hops, Spot, hops
from testbed.scenario.shape import End, Shape


class Shaper:
    """Not thread-safe; a replay borrows ``ends`` and ``lines`` while it runs."""

    def __init__(self) -> None:
        self.ends: dict[End, ShapedEnd] = {}
        self.lines: dict[End, DelayLine] = {}
        self.shapes: dict[End, Shape] = {}
        self.segments = 0
        self._intermediates: dict[Spot, Spot] = {}
        self._hops: dict[End, Hops] = {}
        self._segments_before: dict[Spot, int] = {}
        self._routes_before: dict[Spot, list[SubnetRoute]] = {}

    def prepare(
        self,
        cables: Mapping[str, Cable],
        shapes: Mapping[End, Shape],
        settings: LinkSettings,
        impaired: Collection[End] = (),
    ) -> dict[str, Any]:
        """Bring every end to its shape and check it. Returns what the kernel holds, read back.

        Raises LinkError for a link that is not as asked, MachineError for what the kernel does not know.
        """
        delayed = {end for end, shape in shapes.items() if shape.impairments or end in impaired}
        _require(delayed, shapes)
        self.segments = settings.segments
        for spot in _talking(cables):
            self._limit_segments(spot, settings.segments)
            before = shape_route(*spot, settings.congestion, settings.rto_min_ms, settings.ecn)
            self._routes_before.setdefault(spot, before)
        places = {
            end: hops(end, cables[end.link], settings.at.get(end.link, "nic")) for end in shapes
        }
        self._clear(places, delayed)
        for end, shape in shapes.items():
            self._install(end, shape, end in delayed)
        self.shapes = dict(shapes)
        return {
            "links": [self._held(end, cables[end.link], settings) for end in shapes],
            "gso_max_segs": settings.segments,
            "rto_min_ms": settings.rto_min_ms,
            "tcp_ecn": settings.ecn,
        }

    def remove(self) -> list[str]:
        """Undo all of it; returns what could not be undone, in words."""
        steps: list[Callable[[], None]] = [end.remove for end in self.ends.values()]
        steps += [line.remove for line in self.lines.values()]
        steps += [partial(_at, made, devices.delete) for made in self._intermediates.values()]
        steps += [
            partial(_at, spot, devices.set_link, GSO_MAX_SEGS=count)
            for spot, count in self._segments_before.items()
        ]
        steps += [partial(_restore, *before) for before in self._routes_before.items()]
        failures = undone(steps, errno.ENODEV, errno.ENOENT, errno.ESRCH, errno.EINVAL)
        before = (self._intermediates, self._segments_before, self._routes_before)
        for held in (self.ends, self.lines, *before):
            held.clear()
        return failures

    def _clear(self, places: dict[End, Hops], delayed: Collection[End]) -> None:
        """Take away what an earlier run had elsewhere: all of it, before anything is put there."""
        for end in set(self.ends) - {end for end in places if places[end] == self._hops.get(end)}:
            self.ends.pop(end).remove()
            if end in self.lines:
                self.lines.pop(end).remove()
        for end in set(self.lines) - set(delayed):
            self.lines.pop(end).remove()
        self._hops = places

    def _install(self, end: End, shape: Shape, delayed: bool) -> None:
        place = self._hops[end]
        if end not in self.ends:
            self.ends[end] = ShapedEnd(end, self._where(end, place.queue))
        self.ends[end].install(shape)
        if delayed:
            if end not in self.lines:
                self.lines[end] = DelayLine(end, self._where(end, place.line))
            self.lines[end].install(shape)

    def _where(self, end: End, hop: Hop) -> Where:
        """The device of a hop, made if it must be. Raises LinkError where its name is somebody else's."""
        netns, index, name = hop.interface.netns, hop.interface.index, hop.device
        if hop.passing == "leaving":
            return Where(netns, index, name)
        spot = (netns, index)
        if spot not in self._intermediates:
            self._intermediates[spot] = (netns, _make(end, netns, name).index)
        return Where(netns, self._intermediates[spot][1], name, redirect=index)

    def _limit_segments(self, spot: Spot, segments: int) -> None:
        with Channel(spot[0]) as channel:
            before = devices.device(channel, spot[1]).segments
            self._segments_before.setdefault(spot, before)
            devices.set_link(channel, spot[1], GSO_MAX_SEGS=segments)
            held = devices.device(channel, spot[1]).segments
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
            "line": self.lines[end].verify() if end in self.lines else None,
            "gso_max_segs": settings.segments,
            "congestion": settings.congestion or default_congestion(sender),
            "tcp_ecn": settings.ecn,
            "tcp_metrics_saved": remembers_connections(sender),
        }


def _require(delayed: Collection[End], shapes: Mapping[End, Shape]) -> None:
    """Raises MachineError, before anything is made, where the kernel has no delay lines."""
    if not delayed:
        return
    seeded = [end for end in delayed if shapes[end].impairments.seed is not None]
    missing = probe().missing(needs_of_lines(list(delayed), seeded))
    if missing is not None:
        raise missing


def _talking(cables: Mapping[str, Cable]) -> Iterator[Spot]:
    """The devices that TCP sends through: every node's interface, and the switch's own."""
    bridges: set[Spot] = set()
    for cable in cables.values():
        yield cable.nic.netns, cable.nic.index
        with Channel(cable.port.netns) as channel:
            master = devices.device(channel, cable.port.index).master
        if master:
            bridges.add((cable.port.netns, master))
    yield from bridges


def _at(spot: Spot, action: Callable[..., None], **values: int) -> None:
    with Channel(spot[0]) as channel:
        action(channel, spot[1], **values)


def _restore(spot: Spot, routes: list[SubnetRoute]) -> None:
    with Channel(spot[0]) as channel:
        for route in routes:
            with suppress(KernelRefused):
                set_route(channel, route, route.settings)


def _make(end: End, netns: str | None, name: str) -> devices.Device:
    with Channel(netns) as channel:
        made = devices.find(channel, name)
        if made is not None and made.alias != ALIAS:
            raise LinkError(
                end.link,
                end.direction,
                asked=f"an intermediate device {name!r} of our own",
                held="somebody else's device of that name",
            )
        made = made or devices.add_ifb(channel, name)
        devices.set_link(channel, made.index, IFALIAS=ALIAS)
        devices.silence(channel, made.index)
        devices.set_up(channel, made.index)
        return made
