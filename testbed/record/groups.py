"""Messages that travel together: one step's gradients to a server, and its replies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from testbed.record.fluid import Bits, Load, downloads_done, uploads_done
from testbed.record.stored import Joined, Records, by_number
from testbed.scenario.shape import FRAME_BYTES, End, wire_bytes

Delay = Callable[[End], float]
"""The constant delay of a link direction, in seconds."""


def no_delay(_: End) -> float:
    """Of links that delay nothing."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """Messages that travel together. ``last_s``: when the last byte of the last one had come."""

    step: int
    direction: str
    server: str
    loads: tuple[Load, ...]
    last_s: float

    @property
    def start_s(self) -> float:
        """When the first of them began to be sent."""
        return min(load.start_s for load in self.loads)

    @property
    def ends(self) -> list[End]:
        """The link directions on their way."""
        there: End = End(self.server, "down" if self.direction == "up" else "up")
        return [there, *dict.fromkeys(map(self._end, self.loads))]

    def link_bits(self) -> dict[End, float]:
        """Bits on the wire that each link on the way has to carry."""
        there, *own = self.ends
        bits = dict.fromkeys(own, 0.0)
        for load in self.loads:
            bits[self._end(load)] += load.bits
        return {there: sum(bits.values()), **bits}

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Every source and sink."""
        up, links = self.direction == "up", dict.fromkeys(load.link for load in self.loads)
        return [(link, self.server) if up else (self.server, link) for link in links]

    def done(self, bits: Bits, delay: Delay = no_delay) -> float:
        """When the asked rates and delays would have had the last byte there."""
        there, *own = self.ends
        if self.direction == "up":
            loads = [
                replace(load, start_s=load.start_s + delay(self._end(load))) for load in self.loads
            ]
            return uploads_done(bits, loads, self.server) + delay(there)
        last = delay(there) + max(map(delay, own))
        return downloads_done(bits, self.loads, self.server) + last

    def charged(self, overhead_bytes: int) -> Group:
        """The same messages on links that charge so much for every packet besides."""
        per_packet = 8.0 * overhead_bytes
        full = 8.0 * FRAME_BYTES
        loads = (
            replace(load, bits=load.bits + per_packet * -(-load.bits // full))
            for load in self.loads
        )
        return replace(self, loads=tuple(loads))

    def _end(self, load: Load) -> End:
        """The link direction that is a load's own."""
        return End(load.link, "up" if self.direction == "up" else "down")


def followed(events: Mapping[str, Records]) -> tuple[Records, Records]:
    """What ``groups`` is to be given of a run: rounds and steps, or buckets as both sides saw them."""
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
) -> Iterator[Group]:
    """The groups of all finished rounds, step by step. ``links``: each peer number's link (its node's name).

    ``rounds`` and ``steps`` as ``followed`` has them: a step's buckets are one group each way, or, ``apart``, each its
    own. ``every``: of so many workers, one has its steps recorded.
    """
    for of_step, came in by_number(rounds, steps):
        yield from _groups(of_step, came, links, every, apart)


def _groups(
    rounds: Records, steps: Records, links: Mapping[int, str], every: int, apart: bool
) -> Iterator[Group]:
    """Of one step."""
    replies: dict[_Place, list[Mapping[str, Any]]] = {}
    for step in steps:
        replies.setdefault(_place(step), []).append(step)
    parts: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for round_ in rounds:
        if round_["messages"]:
            alone = (round_.get("bucket"),) if apart else ()
            parts.setdefault((int(round_["step"]), str(round_["node"]), *alone), []).append(round_)
    for together in parts.values():
        yield _upload(together, links)
        came = [replies.get(_place(part), []) for part in together]
        if all(
            len(those) == -(-len(answered(part)) // every)
            for part, those in zip(together, came, strict=True)
        ):
            yield _download(together, [reply for those in came for reply in those], links)


def answered(round_: Mapping[str, Any]) -> list[int]:
    """The peers that a server's reply went to: those that had sent something, and those that rested."""
    return [*(int(m["sender"]) for m in round_["messages"]), *round_.get("others", [])]


_Place = tuple[int, int | None]
"""Step and bucket."""


def _place(record: Mapping[str, Any]) -> _Place:
    return int(record["step"]), record.get("bucket")


def _upload(parts: Records, links: Mapping[int, str]) -> Group:
    """What the server was sent."""
    messages = [message for part in parts for message in part["messages"]]
    loads = [
        Load(links[int(m["sender"])], 8.0 * wire_bytes(int(m["bytes"])), float(m["sent_s"]))
        for m in messages
    ]
    last_s = max(float(m["arrived_s"]) for m in messages)
    return Group(int(parts[0]["step"]), "up", str(parts[0]["node"]), tuple(loads), last_s)


def _download(parts: Records, came: Records, links: Mapping[int, str]) -> Group:
    """What it answered."""
    loads = []
    for part in parts:
        begin, peers = float(part["send_start_s"]), answered(part)
        bits = 8.0 * wire_bytes(int(part["bytes_down"]) // len(peers))
        loads += [Load(links[peer], bits, begin) for peer in peers]
    last_s = max(float(reply["arrived_s"]) for reply in came)
    return Group(int(parts[0]["step"]), "down", str(parts[0]["node"]), tuple(loads), last_s)
