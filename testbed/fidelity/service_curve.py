"""Service curve: the most that links could carry, as a fluid through links whose rates change, and
messages grouped so that they can be held against it. Pure.

With ``C(a, b)`` the integral of a link's asked rate and ``A(t)`` the bits that had come to it by
``t``, a link that always works when something waits finishes ``W`` bits at the latest ``t`` for
which ``C(s, t) = W - A(s)`` for some ``s`` (network calculus: the link is busy from that ``s`` to
the end).

Messages that are under way at the same time on a link direction belong together. If all of such a
cluster go to one node, or all come from one, it is a group; if not, links are shared in a way that
no service curve here describes. So it is where a node sends while it receives: acknowledgements of
what comes, 2 to 4 % of it, share its up link with what it sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

from testbed.records.intervals import IntervalSet
from testbed.records.stored import Joined, Records, by_number
from testbed.scenario.link_state import (
    FRAME_BYTES,
    SEGMENT_BYTES,
    SEGMENT_HEADER_BYTES,
    LinkDirection,
    wire_bytes,
)

Bits = Callable[[LinkDirection, float, float], float]
"""``bits(end, from_s, to_s)``: bits that a link direction was asked to carry between two times."""

_HORIZON_S = 86400.0
"""A link that is asked for nothing any more would take for ever: a day stands for that."""

_RESOLUTION_S = 1e-6
_GRID, _REFINED, _REFINEMENTS = 32, 8, 3


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """``bits`` on the wire that ``link`` sends (or is sent) from ``start_s`` on."""

    link: str
    bits: float
    start_s: float


_Turn = tuple[OfferedLoad, float]
"""A load from when its link turns to it, and when that has carried it."""


def serve(bits: Bits, end: LinkDirection, start_s: float, amount: float) -> float:
    """When ``end``, working from ``start_s``, has carried ``amount`` bits; a day later at most."""
    span = 1e-3
    while bits(end, start_s, start_s + span) < amount:
        span *= 2
        if span > _HORIZON_S:
            return start_s + _HORIZON_S
    low, high = start_s, start_s + span
    while high - low > _RESOLUTION_S:
        middle = (low + high) / 2
        low, high = (middle, high) if bits(end, start_s, middle) < amount else (low, middle)
    return high


def uploads_done(bits: Bits, loads: Sequence[OfferedLoad], server: str) -> float:
    """When the last byte of all ``loads`` has come to ``server``: over each up link, then its down
    link.

    What one link has to carry it carries one after the other, first in, first out.
    """
    turns = [turn for own in _by_link(loads) for turn in _in_turn(bits, "up", own)]

    def arrived(time_s: float) -> float:
        return sum(
            min(load.bits, bits(LinkDirection(load.link, "up"), load.start_s, time_s))
            for load, _ in turns
            if time_s > load.start_s
        )

    times = [load.start_s for load, _ in turns], [left_s for _, left_s in turns]
    return _through(
        bits, LinkDirection(server, "down"), arrived, sum(load.bits for load in loads), *times
    )


def downloads_done(bits: Bits, loads: Sequence[OfferedLoad], server: str) -> float:
    """When all ``loads`` have come from ``server``: over its up link, then each down link.

    Those that begin at one time are a volley. Volleys leave one after the other; the server's link
    is shared in proportion to what each of a volley is still to be sent, so all of it leaves
    together.
    """
    amounts: dict[float, float] = {}
    for load in loads:
        amounts[load.start_s] = amounts.get(load.start_s, 0.0) + load.bits
    starts = sorted(amounts)
    volleys = [OfferedLoad(server, amounts[start_s], start_s) for start_s in starts]
    turns = dict(zip(starts, _in_turn(bits, "up", volleys), strict=True))
    return max(_delivered(bits, own, turns) for own in _by_link(loads))


def _delivered(bits: Bits, loads: Sequence[OfferedLoad], turns: Mapping[float, _Turn]) -> float:
    """When one link has carried its ``loads``; ``turns``: of the volleys that they are of."""
    mine = [(load, *turns[load.start_s]) for load in loads]

    def arrived(time_s: float) -> float:
        return sum(
            load.bits
            / volley.bits
            * min(volley.bits, bits(LinkDirection(volley.link, "up"), volley.start_s, time_s))
            for load, volley, _ in mine
            if time_s > volley.start_s
        )

    times = [volley.start_s for _, volley, _ in mine], [left_s for _, _, left_s in mine]
    total = sum(load.bits for load in loads)
    return _through(bits, LinkDirection(loads[0].link, "down"), arrived, total, *times)


def _by_link(loads: Iterable[OfferedLoad]) -> Iterable[list[OfferedLoad]]:
    by_link: dict[str, list[OfferedLoad]] = {}
    for load in loads:
        by_link.setdefault(load.link, []).append(load)
    return by_link.values()


def _in_turn(
    bits: Bits, direction: Literal["up", "down"], loads: Sequence[OfferedLoad]
) -> Iterator[_Turn]:
    """``loads`` of one link, first in, first out."""
    free_s = -inf
    for load in sorted(loads, key=lambda load: load.start_s):
        turn = replace(load, start_s=max(load.start_s, free_s))
        free_s = serve(bits, LinkDirection(load.link, direction), turn.start_s, load.bits)
        yield turn, free_s


def slowest_rate(bits: Bits, ends: Iterable[LinkDirection], start_s: float, stop_s: float) -> float:
    """Lowest mean rate among ``ends`` between the two times, bit/s."""
    return min(bits(end, start_s, stop_s) / (stop_s - start_s) for end in ends)


def bottleneck_s(
    bits: Bits, loads: Mapping[LinkDirection, float], start_s: float, stop_s: float
) -> float:
    """Longest time that a link needs for its bits at its mean asked rate between the two times."""
    span = max(stop_s - start_s, _RESOLUTION_S)
    rates = {end: bits(end, start_s, start_s + span) / span for end in loads}
    return max(min(loads[end] / max(rates[end], 1e-9), _HORIZON_S) for end in loads)


def _through(
    bits: Bits,
    end: LinkDirection,
    arrived: Callable[[float], float],
    total: float,
    starts: Iterable[float],
    ends: Iterable[float],
) -> float:
    """When ``total`` bits that come as ``arrived`` says have passed ``end``."""
    starts, last = sorted(starts), max(ends)
    begin = starts[0]

    def backlog_from(time_s: float) -> float:
        """Bits asked for since ``begin`` if the link is busy since ``time_s``."""
        return bits(end, begin, time_s) + total - arrived(time_s)

    step = (last - begin) / _GRID
    candidates = [*starts, *(begin + step * index for index in range(_GRID + 1))]
    best = max(candidates, key=backlog_from)
    for _ in range(_REFINEMENTS):
        around = [best + step * (2 * index / _REFINED - 1) for index in range(_REFINED + 1)]
        best = max([best, *(t for t in around if begin <= t <= last)], key=backlog_from)
        step *= 2 / _REFINED
    return max(last, serve(bits, end, begin, backlog_from(best)))


Delay = Callable[[LinkDirection], float]
"""The constant delay of a link direction, in seconds."""


def no_delay(_: LinkDirection) -> float:
    """Return the delay of links that delay nothing."""
    return 0.0


@dataclass(frozen=True, slots=True)
class MessageGroup:
    """Messages that travel together. ``last_s``: when the last byte of the last one had come."""

    step: int
    direction: str
    server: str
    loads: tuple[OfferedLoad, ...]
    last_s: float

    @property
    def start_s(self) -> float:
        """When the first of them began to be sent."""
        return min(load.start_s for load in self.loads)

    @property
    def ends(self) -> list[LinkDirection]:
        """The link directions on their way."""
        shared: LinkDirection = LinkDirection(
            self.server, "down" if self.direction == "up" else "up"
        )
        return [shared, *dict.fromkeys(map(self._end, self.loads))]

    def link_bits(self) -> dict[LinkDirection, float]:
        """Bits on the wire that each link on the way has to carry."""
        shared, *own = self.ends
        bits = dict.fromkeys(own, 0.0)
        for load in self.loads:
            bits[self._end(load)] += load.bits
        return {shared: sum(bits.values()), **bits}

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Every source and sink."""
        up, links = self.direction == "up", dict.fromkeys(load.link for load in self.loads)
        return [(link, self.server) if up else (self.server, link) for link in links]

    def done(self, bits: Bits, delay: Delay = no_delay) -> float:
        """When the asked rates and delays would have had the last byte there."""
        shared, *own = self.ends
        if self.direction == "up":
            loads = [
                replace(load, start_s=load.start_s + delay(self._end(load))) for load in self.loads
            ]
            return uploads_done(bits, loads, self.server) + delay(shared)
        last = delay(shared) + max(map(delay, own))
        return downloads_done(bits, self.loads, self.server) + last

    def charged(self, overhead_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> MessageGroup:
        """The same messages in segments of so much payload, on links that charge so much for every
        packet besides."""
        per_packet = 8.0 * (SEGMENT_HEADER_BYTES + overhead_bytes)
        full, header = 8.0 * FRAME_BYTES, 8.0 * SEGMENT_HEADER_BYTES

        def on_links(bits: float) -> float:
            payload = bits - header * -(-bits // full)
            return payload + per_packet * -(-payload // (8.0 * segment_bytes))

        loads = (replace(load, bits=on_links(load.bits)) for load in self.loads)
        return replace(self, loads=tuple(loads))

    def _end(self, load: OfferedLoad) -> LinkDirection:
        """The link direction that is a load's own."""
        return LinkDirection(load.link, "up" if self.direction == "up" else "down")


def followed(events: Mapping[str, Records]) -> tuple[Records, Records]:
    """Select a run's records for ``groups``: rounds and steps, or buckets of both sides."""
    if served := events.get("served"):
        return served, events.get("bucket", [])
    return events.get("round", []), Joined(events.get("step", []), events.get("rest", []))


def groups(
    rounds: Records,
    steps: Records,
    links: Mapping[int, str],
    every: int = 1,
    *,
    apart: bool = False,
) -> Iterator[MessageGroup]:
    """The groups of all finished rounds, step by step. ``links``: each peer number's link (its
    node's name).

    ``rounds`` and ``steps`` as ``followed`` has them: a step's buckets are one group each way, or,
    ``apart``, each its own. ``every``: of so many workers, one has its steps recorded.
    """
    for of_step, came in by_number(rounds, steps):
        yield from _groups(of_step, came, links, every, apart)


def _groups(
    rounds: Records, steps: Records, links: Mapping[int, str], every: int, apart: bool
) -> Iterator[MessageGroup]:
    """Yield the message groups of one step."""
    replies: dict[_Bucket, list[Mapping[str, Any]]] = {}
    for step in steps:
        replies.setdefault(_bucket_of(step), []).append(step)
    parts: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for round_ in rounds:
        if round_["messages"]:
            alone = (round_.get("bucket"),) if apart else ()
            parts.setdefault((int(round_["step"]), str(round_["node"]), *alone), []).append(round_)
    for together in parts.values():
        yield _upload(together, links)
        came = [replies.get(_bucket_of(part), []) for part in together]
        if all(
            len(those) == -(-len(answered(part)) // every)
            for part, those in zip(together, came, strict=True)
        ):
            yield _download(together, [reply for those in came for reply in those], links)


def answered(round_: Mapping[str, Any]) -> list[int]:
    """The peers that a server replied to: those that had sent something, and those at rest."""
    return [*(int(m["sender"]) for m in round_["messages"]), *round_.get("others", [])]


_Bucket = tuple[int, int | None]
"""Step and bucket."""


def _bucket_of(record: Mapping[str, Any]) -> _Bucket:
    return int(record["step"]), record.get("bucket")


def _upload(parts: Records, links: Mapping[int, str]) -> MessageGroup:
    """Group the messages that were sent to the server."""
    messages = [message for part in parts for message in part["messages"]]
    loads = [
        OfferedLoad(links[int(m["sender"])], 8.0 * wire_bytes(int(m["bytes"])), float(m["sent_s"]))
        for m in messages
    ]
    last_s = max(float(m["arrived_s"]) for m in messages)
    return MessageGroup(int(parts[0]["step"]), "up", str(parts[0]["node"]), tuple(loads), last_s)


def _download(parts: Records, came: Records, links: Mapping[int, str]) -> MessageGroup:
    """Group the server's replies."""
    loads = []
    for part in parts:
        begin, peers = float(part["send_start_s"]), answered(part)
        bits = 8.0 * wire_bytes(int(part["bytes_down"]) // len(peers))
        loads += [OfferedLoad(links[peer], bits, begin) for peer in peers]
    last_s = max(float(reply["arrived_s"]) for reply in came)
    return MessageGroup(int(parts[0]["step"]), "down", str(parts[0]["node"]), tuple(loads), last_s)


BURST_WINDOW_S = 0.002
"""Messages that a node begins to send within this time are sent side by side."""


@dataclass(frozen=True, slots=True)
class MessageInFlight:
    """One message on its way. Times in seconds after t0."""

    source: str
    sink: str
    bytes: int
    sent_s: float
    arrived_s: float
    step: int = 0

    @property
    def ends(self) -> tuple[LinkDirection, LinkDirection]:
        """The link directions that are its own."""
        return LinkDirection(self.source, "up"), LinkDirection(self.sink, "down")


def flights(messages: Iterable[Mapping[str, Any]]) -> list[MessageInFlight]:
    """Convert ``MessageRecord`` objects, in the order of their beginning."""
    under_way = [
        MessageInFlight(
            str(m["sender"]),
            str(m["node"]),
            int(m["bytes"]),
            float(m["sent_s"]),
            float(m["arrived_s"]),
            int(m["step"]),
        )
        for m in messages
    ]
    return sorted(under_way, key=lambda flight: flight.sent_s)


def group_by_common_end(under_way: Sequence[MessageInFlight]) -> tuple[list[MessageGroup], int]:
    """The groups of flights in the order of their beginning, and how many clusters are none."""
    groups, entangled = list[MessageGroup](), 0
    carried: dict[LinkDirection, IntervalSet] = {}
    for flight in under_way:
        for end in flight.ends:
            carried.setdefault(end, IntervalSet()).add(flight.sent_s, flight.arrived_s)
    for cluster in _clusters(under_way):
        if any(_acknowledges(flight, carried) for flight in cluster):
            entangled += 1
            continue
        sources, sinks = {flight.source for flight in cluster}, {flight.sink for flight in cluster}
        if len(sinks) == 1:
            groups.append(_group(cluster, "up", cluster[0].sink))
        elif len(sources) == 1:
            groups.append(_group(cluster, "down", cluster[0].source))
        else:
            entangled += 1
    return groups, entangled


def _acknowledges(flight: MessageInFlight, carried: Mapping[LinkDirection, IntervalSet]) -> bool:
    """Return True if acknowledgements of other flights are on its link directions meanwhile."""
    against = (LinkDirection(flight.source, "down"), LinkDirection(flight.sink, "up"))
    return any(
        end in carried and carried[end].overlaps(flight.sent_s, flight.arrived_s) for end in against
    )


def _clusters(under_way: Sequence[MessageInFlight]) -> Iterator[list[MessageInFlight]]:
    """Flights that overlap on a link direction, directly or by way of others."""
    above = list(range(len(under_way)))

    def top(number: int) -> int:
        while above[number] != number:
            above[number] = above[above[number]]
            number = above[number]
        return number

    latest: dict[LinkDirection, int] = {}
    """The flight that lasts longest of those that have begun, for every link direction."""
    for number, flight in enumerate(under_way):
        for end in flight.ends:
            before = latest.get(end)
            if before is not None and under_way[before].arrived_s > flight.sent_s:
                above[top(number)] = top(before)
            if before is None or under_way[before].arrived_s <= flight.arrived_s:
                latest[end] = number
    clusters: dict[int, list[MessageInFlight]] = {}
    for number, flight in enumerate(under_way):
        clusters.setdefault(top(number), []).append(flight)
    yield from clusters.values()


def _group(cluster: Sequence[MessageInFlight], direction: str, hub: str) -> MessageGroup:
    loads, begun_s = list[OfferedLoad](), float("-inf")
    for flight in cluster:
        if direction == "up" or flight.sent_s - begun_s > BURST_WINDOW_S:
            begun_s = flight.sent_s
        link = flight.source if direction == "up" else flight.sink
        loads.append(OfferedLoad(link, 8.0 * wire_bytes(flight.bytes), begun_s))
    last_s = max(flight.arrived_s for flight in cluster)
    return MessageGroup(cluster[0].step, direction, hub, tuple(loads), last_s)
