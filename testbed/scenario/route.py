"""The link directions between two nodes, whose racks may share links. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.scenario.shape import End


def route(rack_of: Mapping[str, str], source: str | None, sink: str | None) -> list[End]:
    """What a packet passes, in order. ``rack_of``: of the nodes that are in one. None is the switch itself."""
    here, there = rack_of.get(source or ""), rack_of.get(sink or "")
    up = [source, here if here != there else None]
    down = [there if here != there else None, sink]
    passed = [End(link, "up") for link in up if link]
    return [*passed, *(End(link, "down") for link in down if link)]
