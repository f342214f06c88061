"""From what was asked and what was recorded of links and host to the evidence on them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from testbed.record.asked import Asked
from testbed.record.evidence import Evidence, PathSeen, Records, Starved
from testbed.record.followed import follow, starts
from testbed.record.history import LinkHistory
from testbed.record.loss import LossSeen, seen
from testbed.record.spans import Spans
from testbed.record.thresholds import THRESHOLDS, Thresholds
from testbed.record.ways import Ways
from testbed.scenario.shape import End

Trip = tuple[str, str | None, float]
"""Node, peer (None: the switch), and the least round-trip time between them, in seconds."""


def gather(
    links: Records,
    history: LinkHistory,
    asked: Asked,
    *,
    seconds: float,
    processors: int,
    under_way: Spans,
    held: Iterable[Mapping[str, Any]] = (),
    trips: Sequence[Trip] = (),
    ways: Ways | None = None,
    limits: Thresholds = THRESHOLDS,
) -> Evidence:
    """What ``Evidence`` says of links and host.

    ``links``: the agent's report; ``held``: what the manifest says that was read back before t0;
    ``under_way``: when there was traffic that could suffer.
    """
    until_s = {_end(link): float(link["to_s"]) for link in links}
    watched_s, share = history.host.starved_share(under_way, limits)
    return Evidence(
        seconds=seconds,
        links=links,
        followed={
            str(end): found for end, found in follow(asked, history.changes, until_s).items()
        },
        starts={str(end): said for end, said in starts(asked, held).items()},
        losses=_losses(links, asked, limits),
        paths=[] if ways is None else _paths(trips, ways),
        stolen_share=history.host.stolen_share(processors),
        starved=Starved(watched_s, share) if history.host.moments else None,
    )


def unaccounted(
    asked: Asked, crossed: Iterable[str], uncounted: Iterable[str] = ()
) -> dict[str, str]:
    """By place, why the sockets' bytes are not all there is.

    ``crossed``: links that carry other traffic. ``uncounted``: nodes whose gradients a library carries.
    """
    names, without = set(crossed), set(uncounted)
    found = {
        str(end): "gloo keeps no count of its bytes" for end in asked.ends if end.link in without
    }
    for end in asked.ends:
        if end.link in names:
            found.setdefault(str(end), "other traffic goes over it")
    copying = {end for end in asked.ends if any(s.impairments.duplicate for s in asked.shapes(end))}
    for end in asked.ends if copying else []:
        if end in copying or end.direction == "down":
            found.setdefault(str(end), "packets are duplicated on the way")
    return found


def _losses(links: Records, asked: Asked, limits: Thresholds) -> dict[str, LossSeen]:
    lines = [link for link in links if link.get("line_packets") is not None]
    # Of many lines one is outside its interval sooner: together they have the confidence asked for.
    confidence = 1 - (1 - limits.loss_confidence) / max(1, len(lines))
    return {
        str(_end(link)): seen(
            int(link["line_packets"]),
            int(link["line_lost"] or 0),
            asked.shapes(_end(link)),
            confidence,
        )
        for link in lines
    }


def _paths(trips: Iterable[Trip], ways: Ways) -> list[PathSeen]:
    """One per pair, whichever of both ends has seen less."""
    least: dict[frozenset[str | None], Trip] = {}
    for node, peer, time_s in trips:
        pair = frozenset((node, peer))
        if pair not in least or time_s < least[pair][2]:
            least[pair] = (node, peer, time_s)
    return [
        PathSeen(node, peer, time_s, *ways.round_trip_s(node, peer))
        for node, peer, time_s in least.values()
    ]


def _end(link: Mapping[str, Any]) -> End:
    return End(link["link"], cast(Any, link["direction"]))
